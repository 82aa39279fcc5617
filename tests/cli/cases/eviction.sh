# Recipes that evict: from kvq-fit through every command of kvq-eval, and what is refused.
runs kvq-fit --recipe nuq3-1%:evict=h2o,budget=25% --explain
for line in '[eviction]' 'rule = "h2o"' 'budget = 0.25' 'heavy = 0.5'; do
  grep -qxF -- "$line" "$out" || problem "long form without $line"
done
cp "$out" long.toml
runs kvq-fit --recipe long.toml --explain
same_bytes "$out" long.toml
runs kvq-fit --recipe none:evict=pyramidkv,budget=512 --explain --json
[[ $(json "$out" 'report["recipes"][0]["slug"]') == none_evict-pyramidkv_budget-512 ]] || problem "slug"

# One fit serves recipes that differ in what they keep only; an unquantized cache has a file without tables.
recipes=(nuq3-1% nuq3-1%:evict=h2o,budget=100% nuq3-1%:evict=h2o,budget=25% none:evict=snapkv,budget=16,observe=4
  none:evict=pyramidkv,budget=25%,observe=4 none:evict=first-recent,budget=25% int4:evict=snapkv,budget=50%,observe=4)
fit=(kvq-fit --calib "$calib" --thresholds "$thresholds" -o q)
files=()
for recipe in "${recipes[@]}"; do fit+=(--recipe "$recipe"); done
runs "${fit[@]}"
for recipe in "${recipes[@]}"; do
  slug=${recipe//%/pct}
  slug=${slug//[:,]/_}
  files+=(--quantizer "q/${slug//=/-}.h5")
done
runs kvq-eval inspect q/none_evict-snapkv_budget-16_observe-4.h5
grep -q 'rule = "snapkv"' "$out" || problem "inspect"

judge=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 5 --threads 2)
runs "${judge[@]}" "${files[@]}" -o report
grep -q "the first 32 tokens of each window are the prompt" "$err" || problem "the prompt is not named"
grep -q "31 predicted tokens each, those that follow the first 32 tokens" report/report.md || problem "report.md"
is_json report/report.json
[[ $(json report/report.json '(report["prompt"], report["judge_from"], report["position_edges"][0], report["position_edges"][-1])') == "(32, 32, 32, 63)" ]] ||
  problem "prompt and judge_from"
rows() { json report/report.json "$1"; }
[[ $(rows '[row["name"] for row in report["results"][1:]]') == "$(printf "'%s', " "${recipes[@]}" | sed 's/^/[/; s/, $/]/')" ]] ||
  problem "names: $(rows '[row["name"] for row in report["results"]]')"
# All tokens kept: the same as without eviction. Fewer tokens: fewer bytes.
[[ $(rows 'abs(report["results"][1]["nll"] - report["results"][2]["nll"]) < 1e-5') == True ]] || problem "budget of all tokens"
[[ $(rows 'report["results"][3]["cache_bytes"] < report["results"][2]["cache_bytes"]') == True ]] || problem "bytes"
[[ $(rows 'all(row["bits_counted"] < 16 for row in report["results"][3:])') == True ]] || problem "counted bits"
[[ $(rows 'all(row["kl_mean"] > 0 for row in report["results"][1:])') == True ]] || problem "no damage"
runs python3 "$SOURCE/tests/cli/check_html.py" report

# Reports that judge other tokens are not compared; --judge-from is for all rows, also where nothing is evicted.
runs "${judge[@]}" --quantizer "$quantizer" -o whole
[[ $(json whole/report.json '(report["prompt"], report["judge_from"])') == "(None, 0)" ]] || problem "without eviction"
fails 2 "--judge-from" kvq-eval compare report/report.json whole/report.json
runs "${judge[@]}" --quantizer "$quantizer" --judge-from 32 -o late
runs kvq-eval compare report/report.json late/report.json
runs "${judge[@]}" "${files[@]:6:2}" --prompt-tokens 16 --judge-from 32 -o short
fails 2 "--prompt-tokens" kvq-eval compare report/report.json short/report.json
refused "--prompt-tokens is for recipes" "${judge[@]}" --quantizer "$quantizer" --prompt-tokens 16
refused "must leave two tokens" "${judge[@]}" "${files[@]:6:2}" --prompt-tokens 64
refused "predictions 0 to 62" "${judge[@]}" --judge-from 63
runs "${judge[@]}" "${files[@]:6:2}" --judge-from 0
grep -q "look better than what eviction costs" "$err" || problem "no warning"

# Without a file: the same numbers; what quantizes needs one.
runs "${judge[@]}" --recipe none:evict=snapkv,budget=16,observe=4 --json
[[ $(json "$out" 'report["results"][1]["window_nll"]') == "$(rows 'report["results"][4]["window_nll"]')" ]] || problem "--recipe"
refused "kvq-fit makes a file" "${judge[@]}" --recipe nuq3-1%:evict=h2o,budget=16
refused "every report has" "${judge[@]}" --recipe none
refused "given twice" "${judge[@]}" --recipe none:evict=h2o,budget=16 --recipe none:budget=16,evict=h2o

# A prompt's real end counts where the model writes.
runs kvq-eval passkey --model "$model" "${files[@]:6:4}" --lengths 900 --depths 1 --json
[[ $(json "$out" 'len(report["results"])') == 3 ]] || problem "passkey"

refused "the packed cache cannot hold it" "${judge[@]}" "${files[@]:4:2}" --cache packed
refused "evicts keys and values together" "${judge[@]}" "${files[@]:4:2}" --only-side key
runs "${judge[@]}" "${files[@]:4:2}" --only-layers each
refused "groups" kvq-fit --recipe kivi2:evict=h2o,budget=8 --explain
refused "needs budget=" kvq-fit --recipe none:evict=h2o --explain

# An experiment hands prompt and judged part to all of its cells.
cat >small.toml <<'TOML'
title = "Small"
question = "Does it run?"
seqlen = 64
windows = 5
prompt = 40
[[calibration]]
samples = 2
seqlen = 64
[[cell]]
recipes = ["int4", "none:evict=snapkv,budget=50%,observe=4"]
[[claim]]
statement = "four bits are better than half of the tokens"
better = "int4"
worse = "none:evict=snapkv,budget=50%,observe=4"
TOML
run=(kvq-eval experiment small.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" --threads 2)
runs "${run[@]}" --dry-run
grep -q -- "--prompt-tokens 40 --judge-from 40" "$out" || problem "plan"
runs "${run[@]}" -o x
[[ $(json x/report.json '(report["evaluations"][0]["prompt"], report["evaluations"][0]["judge_from"])') == "(40, 40)" ]] || problem "experiment"
sed 's/"none:evict[^"]*"/"int3"/' small.toml >without.toml
refused "no cell has one" kvq-eval experiment without.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text"
# A share below what the rule needs is said.
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --recipe none:evict=first-recent,budget=1%
grep -q "keeps 5 of 64 tokens, more than its budget" "$err" || problem "no warning of a budget that is not kept"
# Models with local layers are refused before a file is made.
runs kvq-fisher --model "$tiny/gemma3/model.gguf" --text "$calibration_text" --samples 2 --seqlen 32 -o gemma.h5
for recipe in int4:lo=2 int4:evict=h2o,budget=50% none:evict=h2o,budget=50%; do
  refused "layers whose queries see" kvq-fit --calib gemma.h5 --recipe "$recipe" -o gemma-q.h5
done
