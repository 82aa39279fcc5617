# compare: earlier reports side by side equal one run over all; what does not belong together is refused.
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --threads 2)
int4=${quantizer/nuq3-1pct/int4}
runs "${perplexity[@]}" --max-windows 6 --quantizer "$int4" -o a
runs "${perplexity[@]}" --max-windows 6 --quantizer "$quantizer" -o b
runs "${perplexity[@]}" --max-windows 6 --quantizer "$int4" --quantizer "$quantizer" -o both
runs kvq-eval compare a/report.json b/report.json -o merged
grep -qE '^nuq3-1% ' "$out" || problem "no row of nuq3"
grep -q '^Recommendation: ' "$out" || problem "no recommendation"
[[ $(ls -A merged) == $'report.csv\nreport.html\nreport.json\nreport.md' ]] || problem "merged: $(ls -A merged)"
same='[{k: v for k, v in row.items() if k not in ("seconds", "relative_time")} for row in report["results"]]'
[[ $(json merged/report.json "$same") == "$(json both/report.json "$same")" ]] || problem "merged is not what one run gives"
runs python3 "$SOURCE/tests/cli/check_html.py" merged

# Again with what is merged already, and with a passkey grid beside it.
runs kvq-eval passkey --model "$model" --quantizer "$quantizer" --lengths 900 --depths 2 -o passkey
runs kvq-eval compare merged/report.json a/report.json passkey/report.json -o all --json
[[ $(json "$out" 'len(report["results"]), len(report["passkey"]["results"]), len(report["commands"])') == "(3, 2, 5)" ]] || problem "all"
runs python3 "$SOURCE/tests/cli/check_html.py" all
[[ $(ls all) == $'passkey.csv\nreport.csv\nreport.html\nreport.json\nreport.md' ]] || problem "all: $(ls all)"
refused report.json kvq-eval compare a/report.json b/report.json -o merged

runs "${perplexity[@]}" --max-windows 5 --quantizer "$int4" -o five
refused "number of windows (--max-windows) is 6 in the first, 5 in the second" kvq-eval compare a/report.json five/report.json
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 32 --max-windows 6 -o short
refused "a/report.json and short/report.json cannot be compared: the window length" kvq-eval compare a/report.json short/report.json
runs kvq-eval perplexity --model "$model" --text "$calibration_text" --seqlen 64 --max-windows 6 -o text
refused "the text is evaluation.txt" kvq-eval compare a/report.json text/report.json
runs kvq-eval perplexity --model "$tiny/gqa-untied/model.gguf" --text "$evaluation_text" --seqlen 64 --max-windows 6 -o model
refused "the model is model.gguf" kvq-eval compare a/report.json model/report.json

echo '{"model": "m", "results": []}' >old.json
refused "earlier version" kvq-eval compare a/report.json old.json
refused "no JSON" kvq-eval compare a/report.md b/report.json
refused none.json kvq-eval compare a/report.json none.json
refused reports kvq-eval compare
refused "a/report.json" kvq-eval compare a/report.json b/report.json -o a --force

# One recipe simulated and packed: the second is named by its cache.
runs "${perplexity[@]}" --max-windows 6 --quantizer "$int4" --cache packed -o packed
runs kvq-eval compare a/report.json packed/report.json --json
[[ $(json "$out" '[row["name"] for row in report["results"]]') == "['none', 'int4', 'int4 [packed]']" ]] || problem "names of packed rows"
# So are those of a grid and of tasks.
for question in "passkey --lengths 900 --depths 1" "tasks --ruler niah-single --lengths 1500 --samples 1"; do
  for cache in simulated packed; do
    # shellcheck disable=SC2086  # several words
    runs kvq-eval $question --model "$model" --quantizer "$int4" --cache $cache -o "asked-$cache"
  done
  runs kvq-eval compare asked-simulated/report.json asked-packed/report.json --json
  [[ $(json "$out" '[(row["name"], row["cache"]) for row in report["results"]]') == \
    "[('none', ''), ('int4', 'simulated'), ('int4 [packed]', 'packed')]" ]] || problem "names of packed rows of ${question%% *}"
  rm -r asked-simulated asked-packed
done

# Numbers that no evaluation gives are refused, before anything is written.
python3 -c '
import json
report = json.load(open("a/report.json"))
report["results"][1]["top1"] = 7
json.dump(report, open("changed.json", "w"))'
refused "changed.json: 'results[1].top1' is 7, not a share (0 to 1)" kvq-eval compare a/report.json changed.json -o x
