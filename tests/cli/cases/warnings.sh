# A warning says that it is one, on the terminal and in the log; other information does not.
for _ in 1 2 3 4; do cat "$evaluation_text"; done >long.txt
context=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["max_position_embeddings"])' "$tiny/mha-tied/hf/config.json")
beyond="is beyond the model's context of $context tokens"
runs kvq-eval perplexity --model "$model" --text long.txt --seqlen $((context + 2)) --max-windows 1 --log-file log
grep -qx "kvq-eval: warning: --seqlen $((context + 2)) $beyond" "$err" || problem "no warning: $(cat "$err")"
grep -q " warning --seqlen .* $beyond$" log || problem "the log: $(cat log)"
(($(grep -c warning "$err") == $(grep -c " warning " log))) || problem "other lines: $(cat "$err")"
runs kvq-eval perplexity --model "$model" --text long.txt --seqlen $((context + 2)) --max-windows 1 --quiet
[[ $(cat "$err") == "kvq-eval: warning: --seqlen "*"$beyond" ]] || problem "with --quiet: $(cat "$err")"
runs kvq-eval perplexity --model "$model" --text long.txt --seqlen $((context + 2)) --max-windows 1 -vv
grep -qE "^\[[0-9:.]+\] kvq-eval: warning: --seqlen " "$err" || problem "with -vv: $(cat "$err")"
runs kvq-fisher --model "$model" --text long.txt --seqlen $((context + 2)) --samples 1 --dry-run
grep -q "^kvq-fisher: warning: --seqlen .* $beyond" "$err" || problem "kvq-fisher: $(cat "$err")"
runs kvq-eval passkey --model "$model" --lengths $((context + 900)) --dry-run
grep -q "^kvq-eval: warning: --lengths .* $beyond" "$err" || problem "passkey: $(cat "$err")"
