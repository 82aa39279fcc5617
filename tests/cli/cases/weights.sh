# Quantized weights: gradients, fit, rows beside quantized caches, an experiment; what is in the files by h5py and numpy.
hf=$tiny/gqa-bias/hf
runs kvq-fisher --model "$hf" --text "$calibration_text" --samples 3 --seqlen 64 --weights --threads 2 -o fisher.h5
grep -q '^fisher.h5: 3 sequences of 64 tokens' "$out" || problem "result of kvq-fisher"
runs kvq-fit --model "$hf" --weight-fisher fisher.h5 --weights w4-s0.45% --weights w2 --threads 2 -o weights
[[ $(ls weights) == $'w2.h5\nw4-s0.45pct.h5' ]] || problem "weights: $(ls weights)"
grep -qE '^w4-s0.45% +4 +[0-9.]+ ' "$out" || problem "table of the fit"
# By itself a file is what it is beside others.
runs kvq-fit --model "$hf" --weight-fisher fisher.h5 --weights w2 --threads 1 -o w2.h5 --json
same_bytes w2.h5 weights/w2.h5
[[ $(json "$out" "[(f['weights'], 2 < f['bits_counted'] < 8, 0 < f['relative_error'] < 0.3) for f in report['fits']]") == "[('w2', True, True)]" ]] ||
  problem "json of the fit: $(cat "$out")"
if grep -qaF "$PWD" fisher.h5 w2.h5; then problem "a file holds a path"; fi

# A cache for the same model; then everything side by side.
runs kvq-fisher --model "$hf" --text "$calibration_text" --samples 3 --seqlen 64 --threads 2 -o calib.h5
runs kvq-fit --calib calib.h5 --recipe int4 -o int4.h5
perplexity=(kvq-eval perplexity --model "$hf" --text "$evaluation_text" --seqlen 64 --max-windows 6 --threads 2)
runs "${perplexity[@]}" --quantizer int4.h5 --weights weights/w4-s0.45pct.h5 --weights w2.h5 -o report
grep -qE '^cache +bits +counted +at 32K +MB +w bits' "$out" || problem "head of the table: $(head -1 "$out")"
[[ $(json report/report.json "[row['name'] for row in report['results']]") == \
  "['none', 'int4', 'w4-s0.45%', 'int4 + w4-s0.45%', 'w2', 'int4 + w2']" ]] || problem "rows"
[[ $(json report/report.json "[row['weights'] and row['weights']['file'] for row in report['results']]") == \
  "[None, None, 'w4-s0.45pct.h5', 'w4-s0.45pct.h5', 'w2.h5', 'w2.h5']" ]] || problem "weights of the rows"
[[ $(json report/report.json "all(r['delta_nll'] == r['delta_nll'] and r['kl_mean'] > 0 for r in report['results'][1:]) and report['results'][4]['kl_mean'] > report['results'][2]['kl_mean']") == True ]] ||
  problem "damage"
[[ $(json report/report.json "report['results'][2]['bits_counted'], report['results'][2]['file']") == "(16.0, '')" ]] || problem "weights alone"
tail -n 1 "$out" | grep -q '^Recommendation: .*int4' || problem "recommendation: $(tail -n 1 "$out")"
grep -q ' + w' <(tail -n 1 "$out") && problem "weights are recommended"
runs python3 "$SOURCE/tests/cli/check_html.py" report
grep -q '^weights' <(head -1 report/report.csv | tr , '\n') || problem "columns of the CSV"
# The rows without weights are what a run without --weights gives.
runs "${perplexity[@]}" --quantizer int4.h5 -o plain
numbers='[(r["name"], r["window_nll"], r["kl_mean"]) for r in report["results"][:2]]'
[[ $(json report/report.json "$numbers") == "$(json plain/report.json "$numbers")" ]] || problem "rows without weights"
# compare keeps rows of other weights apart, and each once.
runs "${perplexity[@]}" --weights w2.h5 -o alone
runs kvq-eval compare plain/report.json alone/report.json report/report.json -o merged
[[ $(json merged/report.json "[row['name'] for row in report['results']]") == \
  "['none', 'int4', 'w2', 'w4-s0.45%', 'int4 + w4-s0.45%', 'int4 + w2']" ]] || problem "merged"
runs kvq-eval passkey --model "$hf" --quantizer int4.h5 --weights w2.h5 --lengths 900 --depths 1 -o passkey
[[ $(json passkey/report.json "[(r['name'], bool(r['weights'])) for r in report['results']]") == \
  "[('none', False), ('int4', False), ('w2', True), ('int4 + w2', True)]" ]] || problem "passkey"
runs kvq-eval tasks --model "$hf" --weights w2.h5 --ruler niah-single --lengths 1500 --samples 1 --json
[[ $(json "$out" "[(r['name'], bool(r['weights'])) for r in report['results']]") == "[('none', False), ('w2', True)]" ]] || problem "tasks"
runs kvq-eval inspect w2.h5
grep -q '^scheme  *w2$' "$out" || problem "inspect"
runs kvq-eval inspect fisher.h5 --json
[[ $(json "$out" "report['kind'], report['sequences'], len(report['layer'])") == "('weight-fisher', 3, 2)" ]] || problem "inspect of gradients"
for plan in "kvq-fisher --model $hf --text $calibration_text --samples 3 --seqlen 64 --weights" \
  "kvq-fit --model $hf --weight-fisher fisher.h5 --weights w3" "${perplexity[*]} --weights w2.h5"; do
  # shellcheck disable=SC2086  # several words
  if [[ $plan == kvq-fit* ]]; then plan="$plan -o x.h5"; fi
  runs $plan --dry-run
  [[ ! -e x.h5 ]] || problem "a plan left a file"
done

# What is refused.
fit=(kvq-fit --model "$hf" --weight-fisher fisher.h5)
refused "'w9'" "${fit[@]}" --weights w9 -o x.h5
refused "w3 is given twice" "${fit[@]}" --weights w3 --weights w3 -o x
refused "either --recipe" "${fit[@]}" -o x.h5
refused "either --recipe" "${fit[@]}" --weights w3 --recipe int4 -o x.h5
refused "--calib goes with --recipe" "${fit[@]}" --weights w3 --calib calib.h5 -o x.h5
refused "--model goes with --weights" kvq-fit --calib calib.h5 --recipe int4 --model "$hf" -o x.h5
refused "--weight-fisher is missing" kvq-fit --model "$hf" --weights w3 -o x.h5
refused "--model is missing" kvq-fit --weight-fisher fisher.h5 --weights w3 -o x.h5
refused "is a calibration file, a weight-fisher file is needed" kvq-fit --model "$hf" --weight-fisher calib.h5 --weights w3 -o x.h5
refused "another model" kvq-fit --model "$model" --weight-fisher fisher.h5 --weights w3 -o x.h5
refused "w2.h5" "${fit[@]}" --weights w2 -o w2.h5
refused "another model" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --weights w2.h5
refused "is a quantizer file, a weights file is needed" "${perplexity[@]}" --weights int4.h5
refused "--only-layers does not go with --weights" "${perplexity[@]}" --quantizer int4.h5 --weights w2.h5 --only-layers 0
refused "none.h5" "${perplexity[@]}" --weights none.h5
refused "--query-heads does not go with --weights" kvq-fisher --model "$hf" --text "$calibration_text" --samples 1 --seqlen 64 --weights --query-heads max -o x.h5
for bytes in 0 600 5000 $(($(stat -c %s w2.h5) - 1)); do
  head -c "$bytes" w2.h5 >cut.h5
  refused cut.h5 "${perplexity[@]}" --weights cut.h5
done

# An experiment with weights: its rows are those of one run of the tools; what is there is used.
cat >small.toml <<'TOML'
title = "Small"
question = "Does it run?"
seqlen = 64
windows = 5
[[calibration]]
samples = 3
seqlen = 64
[[cell]]
recipes = ["int4", "nf3"]
weights = ["w4-s0.45%", "w3"]
[[cell]]
weights = ["w2"]
[[claim]]
statement = "more bits are better"
better = "int4 + w4-s0.45%"
worse = "nf3 + w3"
[[claim]]
statement = "weights cost something"
better = "none"
worse = "w2"
TOML
run=(kvq-eval experiment small.toml --model "$hf" --calibration-text "$calibration_text" --text "$evaluation_text" --threads 2)
runs "${run[@]}" --dry-run
grep -q '^9 cells, 0 finished' "$out" || problem "plan: $(cat "$out")"
(($(grep -c '^    kvq-fisher .*--weights' "$out") == 1)) || problem "gradients of weights in the plan"
runs "${run[@]}" -o x
[[ $(json x/report.json "sorted(r['name'] for r in report['evaluations'][0]['results'])") == \
  "['int4', 'int4 + w3', 'int4 + w4-s0.45%', 'nf3', 'nf3 + w3', 'nf3 + w4-s0.45%', 'none', 'w2', 'w3', 'w4-s0.45%']" ]] || problem "rows of the experiment"
grep -qE '^more bits are better ' "$out" || problem "claim"
[[ $(json x/report.json "[len(c['results']) for c in report['claims']]") == "[1, 1]" ]] || problem "claims"
runs "${run[@]}" -o x --dry-run
[[ $(cat "$out") == "9 cells, 9 finished; still to be run:" ]] || problem "a second plan"
bad() { sed "$2" small.toml >bad.toml && refused "$1" "${run[@]/small/bad}" -o z; rm bad.toml; }
bad "'cell[0].weights' holds" 's/"w3"\]/"w33"]/'
bad "goes with whole caches" 's/^weights = \["w2"\]/weights = ["w2"]\nonly-side = "key"/'
bad "which no cell makes" 's/^worse = "w2"/worse = "w5"/'
bad "a weight's gradient is one number" 's/^samples = 3/samples = 3\nquery-heads = "max"/'

# The content of a file, from FORMAT.md with h5py and numpy: exact weights, codes, what they stand for.
python_with_h5py
"$python" - "$hf/model.safetensors" fisher.h5 weights/w4-s0.45pct.h5 <<'PYTHON'
import json, sys
import h5py, numpy

raw = open(sys.argv[1], "rb").read()
size = int.from_bytes(raw[:8], "little")
table = json.loads(raw[8:8 + size])
parts = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
fisher, file = h5py.File(sys.argv[2]), h5py.File(sys.argv[3])
text = lambda value: value.decode() if isinstance(value, bytes) else value
assert text(file.attrs["scheme"]) == "w4-s0.45%"
taken = weights = 0
for layer in range(2):
    for part, name in parts.items():
        entry = table[f"model.layers.{layer}.{name}.weight"]
        begin, end = entry["data_offsets"]
        w = numpy.frombuffer(raw[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"])
        root = fisher[f"layers/{layer:02}/{part}"]
        assert root.shape == w.shape
        roots = root[...].astype("f8") * root.attrs["scale"]
        group = file[f"layers/{layer:02}/{part}"]
        count = round(0.0045 * w.size)
        sensitive = numpy.argsort(-roots.reshape(-1), kind="stable")[:min(count, round(0.0005 * w.size))]
        size_of = numpy.abs(w.reshape(-1)).astype("f8")
        size_of[sensitive] = -1
        exact = numpy.sort(numpy.concatenate([sensitive, numpy.argsort(-size_of, kind="stable")[:count - len(sensitive)]]))
        start, columns = group["row_start"][...], group["sparse_columns"][...].astype(int)
        rows = numpy.repeat(numpy.arange(w.shape[0]), numpy.diff(start))
        assert numpy.array_equal(rows * w.shape[1] + columns, exact), (layer, part)
        unit = numpy.float32(2.0 ** int(group.attrs["exponent"]))
        assert numpy.array_equal(group["sparse_values"][...], (w.reshape(-1)[exact] / unit).astype("f2"))
        books = group["codebooks"][...].astype("f4") * unit
        bits = numpy.unpackbits(group["codes"][...], axis=1, bitorder="little")[:, :4 * w.shape[1]]
        codes = (bits.reshape(w.shape[0], w.shape[1], 4) * (1 << numpy.arange(4))).sum(axis=2)
        decoded = numpy.take_along_axis(books, codes, axis=1)
        dense = numpy.ones(w.size, bool)
        dense[exact] = False
        dense = dense.reshape(w.shape)
        nearest = numpy.abs(w[:, :, None] - books[:, None, :]).min(axis=2)
        assert numpy.array_equal(numpy.abs(w - decoded)[dense], nearest[dense]), (layer, part)
        assert (codes[~dense] == 0).all()
        taken += sum(group[key].size * group[key].dtype.itemsize for key in ("codebooks", "codes", "row_start", "sparse_columns", "sparse_values")) + 1
        weights += w.size
assert abs(file.attrs["bits_counted"] - 8 * taken / weights) < 1e-12
PYTHON
