# Tiers of bits from kvq-fit through inspect, perplexity and passkey; their tables read by h5py; what is refused.
recipes=(adaptive:hi=4,lo=2,newest=4 adaptive:hi=4,mid=3,lo=1,newest=4,decay=0.9,hysteresis=50% adaptive:hi=4,lo=2,by=window
  adaptive:hi=4,mid=2,lo=1,keep=75%,newest=4,per=head)
fit=(kvq-fit --calib "$calib" --thresholds "$thresholds" -o q --recipe nuq4-1% --recipe nuq2-1%)
for recipe in "${recipes[@]}"; do fit+=(--recipe "$recipe"); done
runs "${fit[@]}"
files=()
for file in q/*.h5; do files+=(--quantizer "$file"); done
past=q/adaptive_hi-4_lo-2_newest-4.h5 window=q/adaptive_hi-4_lo-2_by-window.h5
runs kvq-eval inspect "$past"
grep -q '\[tiers\]' "$out" || problem "inspect: recipe"
grep -qE '^tiers +4 bits, 25 % of the tokens; 2 bits, the rest' "$out" || problem "inspect: tiers"
grep -qE '16, 4' "$out" || problem "inspect: levels"
runs kvq-eval inspect "$window"
grep -q "an oracle, no cache" "$out" || problem "inspect: oracle"
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 -o report "${files[@]}"
[[ $(json report/report.json "len(report['results']) == 7 and all(row['nll'] > 0 for row in report['results'])") == True ]] || problem "report"
# Nothing is counted of an oracle; of the others more than the codes.
[[ $(json report/report.json "[row.get('bits_counted', 0) is None or 'bits_counted' not in row for row in report['results'] if 'window' in row['name']] == [True]") == True ]] || problem "oracle"
[[ $(json report/report.json "[row['bits_counted'] > row['bits_nominal'] for row in report['results'] if row['name'].startswith('adaptive') and 'window' not in row['name']] == 3 * [True]") == True ]] || problem "counted"
runs kvq-eval passkey --model "$model" --lengths 256 --depths 1 --quantizer "$past" --json
runs kvq-eval plan --shape 30,3,64 --lengths 2048 --recipe adaptive:hi=4,lo=2 --json
refused "by=window is no cache" kvq-eval plan --shape 30,3,64 --recipe adaptive:by=window
refused "by=window takes the weights of the whole window" kvq-eval passkey --model "$model" --lengths 256 --depths 1 --quantizer "$window"
refused "the packed cache cannot hold it" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$past" --cache packed
refused "have the same tiers" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$past" --only-side key
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer "$past" --only-layers 0 --json
refused "lo=4 must be less" kvq-fit --explain --recipe adaptive:hi=2,lo=4
refused "keep=F%" kvq-fit --explain --recipe adaptive:evict=h2o,budget=25%
refused "let tokens wait" kvq-fit --explain --recipe adaptive:recent=16
refused "re-encoding would undo" kvq-fit --explain --recipe adaptive:feedback
refused "has tiers of bits" kvq-eval search --model "$model" --text "$evaluation_text" --recipe adaptive --recipe nuq4-1% --budget-bits 3 -o search
runs kvq-fit --explain --recipe adaptive:hi=4,mid=3,lo=1,hysteresis=50%
cp "$out" long.toml
runs kvq-fit --explain --recipe long.toml
same_bytes "$out" long.toml

python_with_h5py
"$python" - q <<'PYTHON'
import sys
import h5py

# The tables of a tier are those of its bits alone; ranges are the first tier's.
with h5py.File(f"{sys.argv[1]}/adaptive_hi-4_lo-2_newest-4.h5") as tiers, h5py.File(f"{sys.argv[1]}/nuq4-1pct.h5") as high, \
        h5py.File(f"{sys.argv[1]}/nuq2-1pct.h5") as low:
    assert tiers.attrs["schema_version"] in (b"1.8", "1.8")
    for layer in tiers["layers"]:
        for side in ("key", "value"):
            own = tiers[f"layers/{layer}/{side}"]
            assert (own["centroids"][...] == high[f"layers/{layer}/{side}/centroids"][...]).all()
            assert (own["tier_2/centroids"][...] == low[f"layers/{layer}/{side}/centroids"][...]).all()
            assert (own["tier_2/decoded"][...] == low[f"layers/{layer}/{side}/decoded"][...]).all()
    assert tiers.attrs["bits_nominal"] == 2.5 and tiers.attrs["table_bytes"] > high.attrs["table_bytes"]
PYTHON
