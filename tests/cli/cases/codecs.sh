# Codecs of head vectors from kvq-fit through inspect and perplexity; their tables read by h5py; what is refused.
recipes=(scalar3 delta3:anchor=16 delta2:anchor=16,abits=4 pq:m=4,bits=3 scalar4:entropy=rans,page=16 scalar4
  scalar3:entropy=huffman,page=16,share=head scalar3:lowrank=2,page=16 K=delta3:anchor=16,rope=post/V=nuq3
  pq:m=4,bits=2,weights=none,sink=0 scalar3:evict=first-recent,budget=32)
fit=(kvq-fit --calib "$calib" --threads 2)
for recipe in "${recipes[@]}"; do fit+=(--recipe "$recipe"); done
runs "${fit[@]}" -o q # no thresholds
files=()
for file in q/*.h5; do
  files+=(--quantizer "$file")
  runs kvq-eval inspect "$file"
done
runs kvq-eval inspect q/delta2_anchor-16_abits-4.h5
grep -qE '^codec +key: delta2:scale=norm,levels=fit,anchor=16,threshold=1,abits=4' "$out" || problem "inspect: codec"
eval=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2)
runs "${eval[@]}" --threads 2 -o report "${files[@]}"
[[ $(json report/report.json "len(report['results']) == 12 and all(0 < row['kl_mean'] < 5 for row in report['results'][1:])") == True ]] ||
  problem "report"
# Entropy coding loses nothing: the same figures as without, at fewer or more bits; the page that is open is counted.
[[ $(json report/report.json "len({row['kl_mean'] for row in report['results'] if row['name'].startswith('scalar4')})") == 1 ]] ||
  problem "scalar4 with and without entropy coding"
[[ $(json report/report.json "len({row['bits_counted'] for row in report['results'] if row['name'].startswith('scalar4')})") == 2 ]] ||
  problem "bits of scalar4 with and without entropy coding"
# Threads change nothing, and neither does the file that other recipes stood beside.
runs kvq-fit --calib "$calib" --threads 1 --recipe delta2:anchor=16,abits=4 -o one.h5
same_bytes one.h5 q/delta2_anchor-16_abits-4.h5
runs kvq-eval plan --shape 4,2,8 --recipe scalar4:entropy=rans --recipe delta3

refused "delta3 codes tokens together with others" "${eval[@]}" --quantizer q/delta3_anchor-16.h5 --cache packed
refused "known for delta3" kvq-fit --calib "$calib" -o x.h5 --recipe delta3:lowrank=4
refused "m must divide" kvq-fit --calib "$calib" -o x.h5 --recipe pq # 16 subspaces of 8 channels
refused "in blocks" kvq-fit --calib "$calib" -o x.h5 --recipe delta3:evict=h2o,budget=25%
refused "fitted without weights" kvq-fit --explain --recipe scalar3:weights=none
runs kvq-fit --explain --recipe K=pq:m=8,norm/V=scalar3:lowrank=4,recent=16
cp "$out" long.toml
runs kvq-fit --explain --recipe long.toml
same_bytes "$out" long.toml

python_with_h5py
"$python" - q "$calib" <<'PYTHON'
import sys
import h5py, numpy

folder, calib = sys.argv[1:]

def tables(name, layer, side):
    with h5py.File(f"{folder}/{name}.h5") as file:
        group = file[f"layers/{layer}/{side}"]
        data, starts = group["codec_tables"][...].tobytes(), group["codec_starts"][...]
        return [data[a:b] for a, b in zip(starts[:-1], starts[1:])]

def split(data):
    return int.from_bytes(data[:2], "little") - 150, numpy.frombuffer(data[2:], "<f4")

with h5py.File(calib) as file:
    (exponent, levels), = [split(data) for data in tables("scalar3", "00", "key")]
    assert levels.shape == (8,) and (numpy.diff(levels) >= 0).all() and abs(levels).max() <= 1
    both = split(tables("delta2_anchor-16_abits-4", "00", "value")[0])[1]
    assert both.shape == (16 + 4,)  # anchors, then deltas
    # All 6 · 64 head vectors are in the fit. pq: each centroid is the mean of the head vectors that are nearest to it, as far as Lloyd's iteration goes.
    for head, data in enumerate(tables("pq_m-4_bits-2_weights-none_sink-0", "01", "value")):
        exponent, numbers = split(data)
        assert exponent == 0 and (numbers[:8] == 1).all()
        books = numbers[8:].reshape(4, 4, 2)  # subspaces, centroids, channels
        x = (file["layers/01/value"][...].astype("f8") * file["layers/01/value"].attrs["scale"])[:, head].reshape(-1, 4, 2)
        for space in range(4):
            near = ((x[:, space, None] - books[space].astype("f8")) ** 2).sum(-1)
            code = near.argmin(1)
            means = numpy.stack([x[code == c, space].mean(0) if (code == c).any() else books[space, c] for c in range(4)])
            assert near.min(1).sum() < 1.01 * ((x[:, space] - means[code]) ** 2).sum(), (head, space)
    with h5py.File(f"{folder}/scalar4_entropy-rans_page-16.h5") as entropy:
        size = entropy["layers/00/key"].attrs["block_bytes"]
        heads = entropy.attrs["kv_heads"]
        assert heads * 16 * 2 < size <= heads * (16 * (2 + 4) + 1)
PYTHON
