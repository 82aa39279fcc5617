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
