# Tasks made after RULER and from a file; every cache side by side; a killed run goes on.
runs kvq-eval tasks --model "$model" --quantizer "$quantizer" --ruler niah-single,frequent-words --lengths 1500 --samples 2 -o report
grep -qE '^task +n +none +nuq3-1%$' "$out" || problem "head of the table"
grep -qE '^niah-single 1500 +2 ' "$out" || problem "row of niah-single"
is_json report/report.json
[[ $(json report/report.json "[(row['name'], [s['kind'] for s in row['scores']]) for row in report['results']]") == \
  "[('none', ['niah-single', 'frequent-words']), ('nuq3-1%', ['niah-single', 'frequent-words'])]" ]] || problem "scores"
[[ $(json report/report.json "all(p['prompt_tokens'] <= 1500 for p in report['prompts']) and len(report['prompts'])") == 4 ]] ||
  problem "prompts"
[[ $(wc -l <report/report.csv) == 5 ]] || problem "report.csv"
grep -q '<h1>Long-context tasks</h1>' report/report.html || problem "report.html"
# The same tasks again say the same; compare puts reports of the same tasks side by side.
runs kvq-eval tasks --model "$model" --ruler niah-single,frequent-words --lengths 1500 --samples 2 -o plain
[[ $(json report/report.json "report['results'][0]['answers']") == "$(json plain/report.json "report['results'][0]['answers']")" ]] ||
  problem "another run, other answers"
runs kvq-eval compare plain/report.json report/report.json -o both
[[ $(json both/report.json "[row['name'] for row in report['results']]") == "['none', 'nuq3-1%']" ]] || problem "compare"
# A file; its prompts may lose their middle.
printf '%s\n' '{"context": "The door is red. The gate is blue.", "question": "Which colour has the gate?", "answers": "blue"}' \
  '{"input": "Who?", "context": "Long ago.", "answers": ["nobody"], "metric": "exact", "dataset": "hard", "new_tokens": 2}' >tasks.jsonl
runs kvq-eval tasks --model "$model" --tasks tasks.jsonl --metric f1 --max-length 45 -o file
[[ $(json file/report.json "[(p['kind'], p['cut'], p['prompt_tokens'] <= 45) for p in report['prompts']]") == \
  "[('tasks', True, True), ('hard', False, True)]" ]] || problem "prompts of the file: $(json file/report.json "report['prompts']")"
runs kvq-eval tasks --model "$model" --tasks tasks.jsonl --metric f1 --dry-run
[[ $(cat "$out") == *"2 for each cache"* ]] || problem "plan"
# Refusals.
refused "either --ruler" kvq-eval tasks --model "$model" -o x
refused "either --ruler" kvq-eval tasks --model "$model" --ruler all --tasks tasks.jsonl -o x
refused "--samples goes with --ruler only" kvq-eval tasks --model "$model" --tasks tasks.jsonl --metric f1 --samples 3 -o x
refused "--lead goes with --tasks only" kvq-eval tasks --model "$model" --ruler all --lead A -o x
refused "niah-single twice" kvq-eval tasks --model "$model" --ruler niah-single,niah-single -o x
refused "line 1" kvq-eval tasks --model "$model" --tasks tasks.jsonl -o x
refused "--form" kvq-eval tasks --model "$model" --tasks tasks.jsonl --metric f1 --form '{context}' -o x
refused "--lengths 300" kvq-eval tasks --model "$model" --ruler common-words --lengths 300 -o x
[[ ! -e x ]] || problem "something was left behind"
