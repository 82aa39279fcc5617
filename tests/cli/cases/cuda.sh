# The cache on the GPU, where there is one; else a message that says so, and no report.
# Without anything that would be on it there is nothing to do; without a GPU, that is what is said.
for command in "perplexity --text $evaluation_text" "passkey --lengths 900"; do
  # shellcheck disable=SC2086  # words
  code_of kvq-eval $command --model "$model" --cache cuda
  ((code == 1 || code == 2)) || problem "exit code $code of $command"
  grep -q -e "--cache cuda: " "$err" || problem "no reason given"
done
judge() {
  code_of kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 \
    --quantizer "$quantizer" --cache "$1" -o "$1"
}
judge cuda
if ((code == 0)); then
  judge packed
  same=$(python3 -c "
import json
a, b = (json.load(open(name + '/report.json'))['results'][1] for name in ('cuda', 'packed'))
print(a['cache_bytes'] == b['cache_bytes'] and all(abs(x - y) < 1e-2 for x, y in zip(a['window_nll'], b['window_nll'])))")
  [[ $same == True ]] || problem "cuda and packed differ"
else
  # No plugin, no GPU: 1. A GPU, but a head_dim that its kernels do not know (this model's is small): 2.
  ((code == 1 || code == 2)) || problem "exit code $code"
  grep -q -e "--cache cuda: " "$err" || problem "no reason given"
  [[ ! -e cuda/report.json ]] || problem "a report was left behind"
fi
