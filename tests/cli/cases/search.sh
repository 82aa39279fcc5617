# The search judges a ladder, then pairs of its rungs, and keeps the quantizer that it chose.
small=(--samples 4 --seqlen 64 --windows 3 --threads 2)
ladder=(--recipe nuq1 --recipe nuq2 --recipe nuq4)
runs kvq-eval search --model "$model" --text "$calibration_text" "${small[@]}" "${ladder[@]}" --budget-bits 3.5 -o budget --json
cp "$out" budget.json
is_json budget.json
# 3.5 counted bits lie between nuq2 and nuq4: pairs of them were tried, and one of all that fit is chosen, the best.
[[ $(json budget.json "{'nuq1', 'nuq2', 'nuq4', 'K=nuq2/V=nuq4', 'K=nuq4/V=nuq2'} <= set(report['search']['tried'])") == True ]] || problem "tried"
[[ $(json budget.json "report['search']['chosen'] == min((row for row in report['evaluations'][0]['results'] if row['name'] != 'none' and row['bits_counted'] <= 3.5), key=lambda row: row['kl_mean'])['name']") == True ]] ||
  problem "not the best of those that fit"
runs kvq-eval inspect budget/quantizer.h5
chosen=$(json budget.json "report['search']['chosen']")
grep -qF "$chosen" "$out" || problem "quantizer.h5 is not $chosen"
# The parts of the text are the whole text, and do not overlap.
cat budget/texts/calibration.* budget/texts/held-out.* | cmp - "$calibration_text" || problem "parts"
# Another goal in the same folder calibrates and fits no rung again.
target=$(json budget.json "sorted(row['kl_mean'] for row in report['evaluations'][0]['results'] if row['name'] in ('nuq2', 'nuq4'))[1]")
before=$(stat -c '%Y %i' budget/calibrations/*.h5)
runs kvq-eval search --model "$model" --text "$calibration_text" "${small[@]}" "${ladder[@]}" --target-kl "$target" -o budget
[[ $(stat -c '%Y %i' budget/calibrations/*.h5) == "$before" ]] || problem "calibrated again"
grep -q '^Chosen: ' "$out" || problem "no choice"
# Nothing meets the goal: exit code 1, the report is there, an earlier goal's quantizer is not.
fails 1 "comes closest" kvq-eval search --model "$model" --text "$calibration_text" "${small[@]}" "${ladder[@]}" --budget-bits 0.5 -o budget --quiet
[[ -e budget/report.json && ! -e budget/quantizer.h5 ]] || problem "files after a search without a result"
# Two texts.
runs kvq-eval search --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" "${small[@]}" --recipe nuq2 --target-kl 100 -o two
[[ -e two/quantizer.h5 && ! -e two/texts ]] || problem "two texts"
# Without gradients: the ladder's recipes do without, and the calibration was made without.
runs kvq-eval search --model "$model" --text "$calibration_text" "${small[@]}" --metric query --recipe kvq2 --recipe nuq4 --target-kl 100 -o query --json
[[ $(json "$out" "report['search']['tried'][:2]") == "['kvq2:metric=query', 'nuq4:weights=query']" ]] || problem "without gradients"
runs kvq-eval inspect query/calibrations/*.h5
grep -q 'none (made forward only)' "$out" || problem "a backward pass for nothing"
refused "twice" kvq-eval search --model "$model" --text "$calibration_text" --target-kl 1 --metric query --recipe nuq2 --recipe nuq2:weights=query -o x
refused "either --target-kl" kvq-eval search --model "$model" --text "$calibration_text" -o x
refused "either --target-kl" kvq-eval search --model "$model" --text "$calibration_text" --target-kl 1 --budget-bits 2 -o x
refused "--budget-bits 0: " kvq-eval search --model "$model" --text "$calibration_text" --budget-bits 0 -o x
refused "same text" kvq-eval search --model "$model" --calibration-text "$calibration_text" --text "$calibration_text" --target-kl 1 -o x
refused "sink=4 beside sink=1" kvq-eval search --model "$model" --text "$calibration_text" --target-kl 1 --recipe nuq2 --recipe nuq3:sink=4 -o x
refused "drops tokens" kvq-eval search --model "$model" --text "$calibration_text" --target-kl 1 --recipe nuq3:evict=h2o,budget=50% -o x
refused "--target-kl" kvq-eval search --model "$model" --text "$calibration_text" --target-kl nan -o x
refused "missing.gguf" kvq-eval search --model missing.gguf --text "$calibration_text" --target-kl 1 -o x
refused "--seqlen" kvq-eval search --model "$model" --text "$calibration_text" --seqlen 100000 --target-kl 1 -o x
refused "missing.txt" kvq-eval search --model "$model" --text missing.txt --target-kl 1 -o x
[[ ! -e x ]] || problem "something was left behind"
