# --forward-only: calibration without gradients, what is fitted to it, and what is refused.
fisher=(kvq-fisher --model "$model" --text "$calibration_text" --samples 6 --seqlen 64 --threads 2)
runs "${fisher[@]}" --forward-only --dry-run --json
[[ $(json "$out" "report['plan']['seconds'] >= 0 and report['plan']['file_bytes'] > 0") == True ]] || problem "plan"
runs "${fisher[@]}" --forward-only -o forward.h5
runs kvq-threshold --calib forward.h5 --outliers 0.01 -o thresholds.h5
fit=(kvq-fit --calib forward.h5 --thresholds thresholds.h5)
runs "${fit[@]}" --metric query --recipe kvq2 --recipe nuq3-1% --recipe int4 --recipe nuq2-1%:feedback --threads 2 -o q
[[ $(ls q) == *int4.h5*kvq2_metric-query.h5*nuq3-1pct_weights-query.h5* ]] || problem "quantizers: $(ls q)"
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 -o report \
  --quantizer q/kvq2_metric-query.h5 --quantizer q/nuq3-1pct_weights-query.h5
[[ $(json report/report.json "[row['name'] for row in report['results']]") == \
   "['none', 'kvq2:metric=query', 'nuq3-1%:weights=query']" ]] || problem "names"
[[ $(json report/report.json "all(0 < row['kl_mean'] < 5 for row in report['results'][1:])") == True ]] || problem "damage"
# The word in the recipe says the same; other threads, the same bytes.
runs "${fit[@]}" --recipe kvq2:metric=query --threads 1 -o word.h5
runs "${fit[@]}" --recipe kvq2 --metric query --threads 1 -o option.h5
[[ $(json <(kvq-eval inspect word.h5 --json) "report['recipe']") == "kvq2:metric=query" ]] || problem "recipe of the file"
runs kvq-eval inspect forward.h5
grep -q 'none (made forward only)' "$out" && grep -q 'key metric' "$out" || problem "inspect"
runs kvq-fit --recipe kvq2 --metric query --explain
cp "$out" long.toml
grep -q 'metric = "query"' long.toml && grep -q 'weights = "query"' long.toml || problem "long form"
runs kvq-fit --recipe long.toml --explain
same_bytes "$out" long.toml

refused "keys need gradients" "${fit[@]}" --recipe kvq2 -o x.h5
refused "--metric query" "${fit[@]}" --recipe nuq3-1% -o x.h5
refused "'key_metric' of every layer" kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe kvq2 --metric query -o x.h5
refused "--query-heads does not go with --forward-only" "${fisher[@]}" --forward-only --query-heads max -o x.h5
refused "--recompute does not go with --forward-only" "${fisher[@]}" --forward-only --recompute layer -o x.h5
refused "--forward-only does not go with --weights" "${fisher[@]}" --forward-only --weights -o x.h5
refused "--metrics does not go with --weights" "${fisher[@]}" --metrics --weights -o x.h5
refused "keys before RoPE" kvq-fit --calib forward.h5 --recipe nuq3:rope=post --metric query -o x.h5
refused "--metric goes with --recipe only" kvq-fit --weights w4 --model "$model" --weight-fisher forward.h5 --metric query -o x.h5
refused "fisher,query" kvq-fit --calib forward.h5 --recipe nuq3 --metric hessian -o x.h5

# Both in one file: the same metric, and recipes of either kind.
runs "${fisher[@]}" --metrics -o both.h5
runs kvq-threshold --calib both.h5 --outliers 0.01 -o both-thresholds.h5
runs kvq-fit --calib both.h5 --thresholds both-thresholds.h5 --recipe kvq2 --recipe kvq2:metric=query -o both

python_with_h5py
"$python" - <<'PYTHON'
import h5py, numpy
forward, both = h5py.File("forward.h5"), h5py.File("both.h5")
assert forward.attrs["gradients"] == 0 and forward.attrs["metrics"] == 1 and both.attrs["metrics"] == 1
assert "gradients" not in both.attrs
for layer in ("00", "01"):
    a, b = forward["layers/" + layer], both["layers/" + layer]
    assert "key_grad" not in a and "value_grad" not in a and "key_grad" in b
    for name in ("key_metric", "value_metric"):
        x, y = a[name][...], b[name][...]
        assert x.dtype == "f8" and x.shape == b["query_moment"].shape
        assert abs(x - y).max() < 1e-4 * abs(y).max()
        assert numpy.linalg.eigvalsh(x).min() > -1e-6 * abs(x).max()  # positive semidefinite
PYTHON
