# Greedy continuations side by side.
runs kvq-eval generate --model "$model" --quantizer "$quantizer" --prompt "Once upon a time" --new-tokens 12
grep -qE '^none: 1?[0-9] tokens?(, ended)?$' "$out" || problem "the baseline's line"
grep -qE '^nuq3-1%: 1?[0-9] tokens?(, ended)?, (the same|parts at token)' "$out" || problem "the quantizer's line"
runs kvq-eval generate --model "$model" --quantizer "$quantizer" --prompt "Once upon a time" --new-tokens 12 --json
cp "$out" first.json
is_json first.json
[[ $(json first.json "[row['name'] for row in report['results']]") == "['none', 'nuq3-1%']" ]] || problem "rows"
[[ $(json first.json "report['results'][0]['parts_at'] is None and report['results'][0]['kl_mean'] is None") == True ]] || problem "baseline"
[[ $(json first.json "all((row['parts_at'] is None) == (row['tokens'] == report['results'][0]['tokens'] and row['ended'] == report['results'][0]['ended']) for row in report['results'])") == True ]] ||
  problem "parts_at"
# A file says the same as the text; the same command the same.
printf 'Once upon a time' >prompt.txt
runs kvq-eval generate --model "$model" --quantizer "$quantizer" --prompt-file prompt.txt --new-tokens 12 --json
cmp "$out" first.json || problem "a file, another result"
# Its cache really is quantized: another recipe, another divergence.
runs kvq-fit --calib "$calib" --recipe int1:key=token -o int1.h5
runs kvq-eval generate --model "$model" --quantizer int1.h5 --prompt "Once upon a time" --new-tokens 12 --json
cp "$out" int1.json
[[ $(json int1.json "report['results'][1]['kl_mean'] > 0") == True ]] || problem "one bit costs nothing"
runs kvq-eval generate --model "$model" --quantizer "$quantizer" --prompt A --dry-run
[[ $(cat "$out") == *"1 for each cache"* ]] || problem "plan"
refused "either --prompt" kvq-eval generate --model "$model"
refused "either --prompt" kvq-eval generate --model "$model" --prompt A --prompt-file prompt.txt
refused "--prompt: its value is empty" kvq-eval generate --model "$model" --prompt ""
: >empty.txt
refused "--prompt-file 'empty.txt' is empty" kvq-eval generate --model "$model" --prompt-file empty.txt
refused "byte 1 is not UTF-8" kvq-eval generate --model "$model" --prompt $'a\xff'
refused "missing.txt" kvq-eval generate --model "$model" --prompt-file missing.txt
refused "--new-tokens" kvq-eval generate --model "$model" --prompt A --new-tokens 0
refused "generate without --chat" kvq-eval generate --model "$model" --prompt A --chat
refused "chat template" kvq-eval generate --model "$model" --prompt A --chat
