# Recipes with feedback from calibration to report, in packed caches too.
runs kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe kvq2 --recipe kvq1.5 --recipe kvq4:icm=0 \
  --recipe nuq2-1%:feedback,icm=2 --threads 2 -o q
[[ $(ls q) == *kvq1.5.h5* && $(ls q) == *kvq2.h5* ]] || problem "quantizers: $(ls q)"
feedback=q/nuq2-1pct_feedback_icm-2.h5
for cache in simulated packed; do
  runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 -o "$cache" \
    --cache "$cache" --quantizer "$feedback" --quantizer q/kvq2.h5 --quantizer q/kvq1.5.h5 --quantizer q/kvq4_icm-0.h5
done
[[ $(python3 -c "
import json
a, b = (json.load(open(name + '/report.json'))['results'] for name in ('simulated', 'packed'))
print(len(a) == 5 and all(abs(x - y) < 1e-3 for r, s in zip(a, b) for x, y in zip(r['window_nll'], s['window_nll'])),
      [r['cache_bytes'] for r in a] == [r['cache_bytes'] for r in b])") == "True True" ]] || problem "simulated and packed differ"
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 -o report \
  --quantizer q/kvq2.h5 --quantizer q/kvq1.5.h5
[[ $(json report/report.json "[row['name'] for row in report['results']]") == "['none', 'kvq2', 'kvq1.5']" ]] || problem "names"
[[ $(json report/report.json "[round(row['bits_nominal'], 3) for row in report['results']]") == "[16.0, 2.167, 1.583]" ]] ||
  problem "nominal bits"
refused "no thresholds file is given" kvq-fit --calib "$calib" --recipe kvq2 -o x.h5
# The long form says all of it, and reads back.
runs kvq-fit --recipe kvq3 --explain
cp "$out" kvq3.toml
grep -q 'widths = "pair"' kvq3.toml && grep -q 'levels = 10' kvq3.toml || problem "long form"
runs kvq-fit --recipe kvq3.toml --explain
same_bytes "$out" kvq3.toml
# The same bytes again, on another number of threads.
runs kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe kvq2 --threads 1 -o again.h5
h5=$(cksum <again.h5)
runs kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe kvq2 --threads 1 -o again.h5 --force
[[ $(cksum <again.h5) == "$h5" ]] || problem "another run, other bytes"
# Exact recent tokens go with feedback; groups do not.
runs kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe kvq2:recent=16 -o recent.h5
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer recent.h5 -o recent
refused "one by one" kvq-fit --calib "$calib" --recipe kivi2:feedback -o x.h5
