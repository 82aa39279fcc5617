# turbo from kvq-fit through inspect and perplexity; its tables read by h5py; what is refused.
recipes=(turbo3 turbo2:rotation=hadamard turbo3:qjl K=turbo3/V=turbo2 turbo2:outlier-channels=4,outlier-bits=4 turbo4:norm=unbiased,recent=16)
fit=(kvq-fit --calib "$calib" -o q)
for recipe in "${recipes[@]}"; do fit+=(--recipe "$recipe"); done
runs "${fit[@]}" # no thresholds
files=()
for file in q/*.h5; do
  files+=(--quantizer "$file")
  runs kvq-eval inspect "$file"
done
runs kvq-eval inspect q/turbo2_rotation-hadamard.h5
grep -q 'rotation = "hadamard"' "$out" || problem "inspect: recipe"
grep -qE '^turbo +.*hadamard' "$out" || problem "inspect: tables"
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 2 --threads 2 -o report "${files[@]}"
[[ $(json report/report.json "len(report['results']) == 7 and all(row['nll'] > 0 for row in report['results'])") == True ]] ||
  problem "report"
refused "is for turbo" kvq-fit --calib "$calib" -o x.h5 --recipe int4:qjl
refused "2 at least" kvq-fit --calib "$calib" -o x.h5 --recipe turbo2:outlier-channels=8,outlier-bits=4 # heads of 8 channels
refused "needs outlier-bits" kvq-fit --explain --recipe turbo2:outlier-channels=4
runs kvq-fit --explain --recipe turbo3:qjl,seed=7
cp "$out" long.toml
runs kvq-fit --explain --recipe long.toml
same_bytes "$out" long.toml

python_with_h5py
"$python" - q "$calib" <<'PYTHON'
import sys
import h5py, numpy

folder, calib = sys.argv[1:]
with h5py.File(f"{folder}/turbo3.h5") as file:
    q, levels = file["turbo/key/rotation"][...], file["turbo/key/levels"][...]
    assert q.shape == (8, 8) and abs(q @ q.T - numpy.eye(8)).max() < 1e-6 and numpy.linalg.det(q.astype("f8")) > 0.999
    assert levels.shape == (8,) and (levels == -levels[::-1]).all() and (numpy.diff(levels) > 0).all()
    # Stationary: each level is the mean of its cell under (1 - t^2)^((d - 3) / 2), here by a fine sum.
    t = numpy.linspace(-1, 1, 2_000_001)
    cell = numpy.searchsorted(0.5 * (levels[1:] + levels[:-1]).astype("f8"), t)
    f = (1 - t * t) ** 2.5
    means = numpy.bincount(cell, f * t) / numpy.bincount(cell, f)
    assert abs(means - levels).max() < 1e-5
with h5py.File(f"{folder}/turbo2_rotation-hadamard.h5") as file:
    assert file["turbo/value/signs"].shape == (1, 8) and set(file["turbo/value/signs"][...].flat) <= {1.0, -1.0}
with h5py.File(f"{folder}/turbo3_qjl.h5") as file:
    assert file["turbo/key/levels"].shape == (4,) and file["turbo/key/sketch"].shape == (8, 8)
with h5py.File(f"{folder}/turbo2_outlier-channels-4_outlier-bits-4.h5") as file, h5py.File(calib) as data:
    assert file["turbo/key/outliers/rotation"].shape == (4, 4) and file["turbo/key/outliers/levels"].shape == (16,)
    for layer in data["layers"]:
        for side in ("key", "value"):
            x = data[f"layers/{layer}/{side}"][...].astype("f8")
            energy = (x * x).sum(axis=0)
            found = file[f"layers/{layer}/{side}/outlier_channels"][...]
            for head, channels in enumerate(found):
                assert list(channels) == sorted(numpy.argsort(-energy[head], kind="stable")[:4]), (layer, side, head)
PYTHON
