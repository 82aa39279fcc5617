# --help and --version go to stdout and end with 0; nothing on stderr.
for tool in kvq-fisher kvq-threshold kvq-fit kvq-eval "kvq-eval perplexity" "kvq-eval passkey" "kvq-eval tasks" "kvq-eval generate" "kvq-eval compare" "kvq-eval inspect" \
  "kvq-eval experiment" "kvq-eval search" "kvq-eval plan"; do
  # shellcheck disable=SC2086  # two words
  for flag in --help -h; do
    runs $tool $flag
    [[ ! -s $err ]] || problem "stderr of $tool $flag"
    grep -qi "usage" "$out" || problem "no usage in $tool $flag"
  done
  for option in --threads --quiet --log-file --config; do
    grep -q -- "$option" "$out" || [[ $tool == kvq-eval ]] || problem "$tool --help does not mention $option"
  done
done
for tool in kvq-fisher kvq-threshold kvq-fit kvq-eval; do
  runs "$tool" --version
  grep -qE '^[0-9]+\.[0-9]+\.[0-9]+$' "$out" || problem "version of $tool"
done
[[ -z $(ls -A) ]] || problem "help left files"
