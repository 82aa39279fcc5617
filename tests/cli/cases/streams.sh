# Results on stdout, everything else on stderr; --quiet, --json, --dry-run, -v, --log-file.
fisher=(kvq-fisher --model "$model" --text "$calibration_text" --samples 2 --seqlen 64)
threshold=(kvq-threshold --calib "$calib" --outliers 0.01)
fit=(kvq-fit --calib "$calib" --recipe int4)
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer "$quantizer")
passkey=(kvq-eval passkey --model "$model" --lengths 900 --depths 1)
for command in fisher threshold fit perplexity passkey; do
  declare -n words=$command
  output=()
  [[ $command == p* ]] || output=(-o "$command.h5")
  runs "${words[@]}" "${output[@]}" --quiet --json
  [[ ! -s $err ]] || problem "$command --quiet prints on stderr"
  is_json "$out"
  runs "${words[@]}" "${output[@]}" --force -v --log-file "$command.log"
  [[ -s $command.log ]] || problem "$command wrote no log"
  grep -q "settings" "$command.log" || problem "$command does not log its settings"
  grep -q "^kvq-[a-z]*: " "$err" || problem "$command -v says nothing"
  if grep -q $'\033' "$err"; then problem "$command draws on a stderr that is no terminal"; fi
done
for command in fisher threshold fit perplexity passkey; do
  declare -n words=$command
  output=(-o "plan-$command.h5")
  runs "${words[@]}" "${output[@]}" --dry-run
  [[ -s $out ]] || problem "$command --dry-run prints no plan"
  runs "${words[@]}" "${output[@]}" --dry-run --json
  is_json "$out"
  [[ ! -e plan-$command.h5 ]] || problem "$command --dry-run wrote its output"
done
runs "${fisher[@]}" -o plan.h5 --dry-run --json
[[ $(json "$out" "report['tokens'] > 1000 and 'plan' in report") == True ]] || problem "kvq-fisher --dry-run --json"
runs "${passkey[@]}" --trials 3 --dry-run --json
[[ $(json "$out" "report['prompts'] == 3 and report['caches'] == 1 and report['memory_bytes'] > 1e5 and report['seconds'] >= 0") == True ]] ||
  problem "kvq-eval passkey --dry-run --json: $(cat "$out")"
runs "${perplexity[@]}" --dry-run --json
[[ $(json "$out" "report['windows'] >= 1 and report['caches'] == 2 and report['memory_bytes'] > 1e5 and report['seconds'] >= 0") == True ]] ||
  problem "kvq-eval perplexity --dry-run --json: $(cat "$out")"
# A reader that goes away is no failure.
"${perplexity[@]}" --quiet | true
