# The grid: lengths × depths × trials, every cache side by side.
runs kvq-eval passkey --model "$model" --quantizer "$quantizer" --lengths 900,1100 --depths 2 --trials 2 -o report
grep -qE '^cache +900 +1100$' "$out" || problem "head of the table"
grep -qE '^none +[0-4]/4 +[0-4]/4$' "$out" || problem "row of the baseline"
is_json report/report.json
[[ $(json report/report.json "[(row['name'], len(row['cells'])) for row in report['results']]") == "[('none', 4), ('nuq3-1%', 4)]" ]] ||
  problem "cells"
[[ $(json report/report.json "all(c['prompt_tokens'] <= c['length'] and len(c['continuations']) == 2 for row in report['results'] for c in row['cells'])") == True ]] ||
  problem "content of the cells"
# A length that no prompt fits is refused with the shortest before anything runs.
refused "--lengths 50" kvq-eval passkey --model "$model" --lengths 900,50 -o short

# An interrupted grid goes on where it stopped, to the same report.
passkey=(kvq-eval passkey --model "$model" --quantizer "$quantizer" --lengths 900,1100 --depths 5 --trials 8 --threads 1)
runs "${passkey[@]}" -o whole
"${passkey[@]}" -o cut >"$out" 2>"$err" &
until [[ -e cut/.journal/task-000003 ]]; do
  kill -0 $! 2>/dev/null || problem "ended before it could be killed"
  sleep 0.02
done
kill -9 $!
wait $! || true
[[ ! -e cut/report.json ]] || problem "a report of a run that was killed"
runs "${passkey[@]}" -o cut
[[ ! -e cut/.journal ]] || problem "the journal is still there"
[[ $(json cut/report.json "report['results']") == "$(json whole/report.json "report['results']")" ]] || problem "results after going on"
