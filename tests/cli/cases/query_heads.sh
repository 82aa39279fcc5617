# --query-heads: magnitudes over the query heads of a kv head, and what cannot be fitted to them.
gqa=$tiny/gqa-bias/model.gguf
fisher=(kvq-fisher --model "$gqa" --text "$calibration_text" --samples 3 --seqlen 64 --threads 2)
runs "${fisher[@]}" -o joint.h5
runs "${fisher[@]}" --query-heads mean -o mean.h5
runs "${fisher[@]}" --query-heads max -o max.h5
runs kvq-threshold --calib mean.h5 --outliers 0.01 -o thresholds.h5
runs kvq-fit --calib mean.h5 --thresholds thresholds.h5 --recipe nuq3-1% --recipe nuq2 -o fits
runs kvq-eval perplexity --model "$gqa" --text "$evaluation_text" --seqlen 64 --max-windows 5 --quantizer fits/nuq3-1pct.h5
refused "nuq3-1%:feedback: keys need gradients with their sign" kvq-fit --calib mean.h5 --thresholds thresholds.h5 --recipe nuq3-1%:feedback -o x.h5
refused "(kvq-fisher --query-heads mean)" kvq-fit --calib mean.h5 --thresholds thresholds.h5 --recipe kvq3 -o x.h5
refused "(kvq-fisher --query-heads max)" kvq-fit --calib max.h5 --recipe nuq3:rope=post -o x.h5
refused "or use weights=none" kvq-fit --calib max.h5 --recipe nuq3:rope=post -o x.h5
runs kvq-fit --calib max.h5 --recipe nuq3:rope=post,weights=none -o post.h5
refused "query-heads" "${fisher[@]}" --query-heads median -o x.h5
runs kvq-eval inspect mean.h5
grep -q 'query heads  *mean' "$out" || problem "inspect"

python_with_h5py
"$python" - <<'PYTHON'
import h5py, numpy
joint, mean, largest = (h5py.File(name + ".h5") for name in ("joint", "mean", "max"))
assert "query_heads" not in joint.attrs
text = lambda value: value.decode() if isinstance(value, bytes) else value
assert text(mean.attrs["query_heads"]) == "mean" and text(largest.attrs["query_heads"]) == "max"
for layer in ("00", "01"):
    for side in ("key", "value"):
        # Keys and values themselves are the same but for rounding: gradients alone differ.
        a, b = (f[f"layers/{layer}/{side}"][...].astype("f8") * f[f"layers/{layer}/{side}"].attrs["scale"] for f in (joint, mean))
        assert abs(a - b).max() < 2e-3 * abs(a).max()
        g, m, x = (f[f"layers/{layer}/{side}_grad"][...].astype("f8") * f[f"layers/{layer}/{side}_grad"].attrs["scale"] for f in (joint, mean, largest))
        tiny = 2e-3 * x.max()
        # Two query heads: |sum| <= 2 · root mean square <= 2 · largest <= sqrt(2) · 2 · root mean square.
        assert (m >= 0).all() and (x >= 0).all()
        assert (abs(g) <= m * 1.002 + tiny).all() and (m <= x * 1.002 + tiny).all() and (x <= m * 2**0.5 * 1.002 + tiny).all()
        assert (m > abs(g) * 1.2).mean() > 0.2  # and they do differ
PYTHON
