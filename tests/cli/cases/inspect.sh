# inspect: what a file holds, checked against h5py; damaged and unknown files end with 2.
runs kvq-eval inspect "$quantizer"
grep -q '^recipe  *nuq3-1%$' "$out" || problem "recipe"
grep -qE '^0 +key ' "$out" || problem "table of layers"
grep -q "complete, and everything in it was read and checked" "$out" || problem "no word that it was checked"
# Every kind of recipe, those that settle later and fixed formats, too.
for recipe in kivi2 atom3 flexgen4 fp8 kvq2 int3:range=window nuq3:key=token,recent=16 none:evict=h2o,budget=50%; do
  runs kvq-fit --calib "$calib" --thresholds "$thresholds" --recipe "$recipe" -o kind.h5 --force
  runs kvq-eval inspect kind.h5
done
runs kvq-eval inspect "$thresholds"
grep -qE '^0.05 +1 +key_post ' "$out" || problem "sets"
runs kvq-eval inspect "$calib"
grep -qE 'sequences +6 of 64 tokens' "$out" || problem "sequences"
for file in calib thresholds quantizer; do
  kvq-eval inspect "${!file}" --json >$file.json
  is_json $file.json
done

# Damage: cut short, a byte flipped in the header, not ours, another kind, no HDF5 at all, nothing there.
head -c 3000 "$quantizer" >cut.h5
refused cut.h5 kvq-eval inspect cut.h5
echo text >text.h5
refused text.h5 kvq-eval inspect text.h5
refused none.h5 kvq-eval inspect none.h5
refused file kvq-eval inspect
mkdir folder
refused folder kvq-eval inspect folder

python_with_h5py
"$python" - "$calib" "$thresholds" "$quantizer" <<'PYTHON'
import json, shutil, sys
import h5py, numpy

calib, thresholds, quantizer = sys.argv[1:]
with h5py.File(calib) as file:
    said = json.load(open("calib.json"))
    assert said["kind"] == "calibration" and said["model_sha256"] == file.attrs["model_sha256"].decode()
    assert (said["sequences"], said["seqlen"]) == file["tokens"].shape
    assert abs(said["loss_mean"] - numpy.mean(file["loss"])) < 1e-12
    for layer, entry in enumerate(said["layer"]):
        group = file[f"layers/{layer:02}"]
        for name in ("key", "value"):
            values = group[name][...].astype("float64") * group[name].attrs["scale"]
            assert abs(entry[name + "_rms"] / numpy.sqrt((values**2).mean()) - 1) < 1e-6
            assert abs(entry[name + "_max"] / abs(values).max() - 1) < 1e-6
with h5py.File(thresholds) as file:
    said = json.load(open("thresholds.json"))
    assert len(said["sets"]) == file.attrs["set_count"]
    for index, entry in enumerate(said["sets"]):
        group = file[f"sets/{index:02}"]
        assert entry["fraction"] == group.attrs["fraction"]
        assert abs(entry["key"]["outlier_rate"] - group["key/outlier_rate"][...].mean()) < 1e-12
        assert entry["value"]["lowest_threshold"] == group["value/lower"][...].min()
with h5py.File(quantizer) as file:
    said = json.load(open("quantizer.json"))
    assert said["recipe"] == file.attrs["recipe"].decode()
    assert abs(said["bits_counted"]["32768"] - file.attrs["bits_counted_32k"]) < 1e-12
    assert said["table_bytes"] == file.attrs["table_bytes"]
    for layer, entry in enumerate(said["layer"]):
        group = file[f"layers/{layer:02}/key"]
        assert numpy.array_equal(numpy.float32(entry["key"]["codebooks"]), group["centroids"][...])
        assert entry["key"]["lowest_threshold"] == group["lower"][...].min()

def damaged(source, name, change):
    shutil.copy(source, name)
    with h5py.File(name, "r+") as file:
        change(file)

def mass(file):
    file["layers/01/attention_mass"][3] += 500
def beyond(file):
    file["sets/00/value/lower"][0, 0, 0] = file["sets/00/value/minimum"][0, 0, 0] - 1
damaged(calib, "mass.h5", mass)
damaged(thresholds, "beyond.h5", beyond)
damaged(quantizer, "recipe.h5", lambda file: file.attrs.modify("recipe", "nuq4-1%"))
damaged(quantizer, "kind.h5", lambda file: file.attrs.modify("kvq_schema", "cabbage"))
damaged(quantizer, "foreign.h5", lambda file: file.attrs.pop("kvq_schema"))
damaged(quantizer, "nan.h5", lambda file: file["layers/00/key/centroids"].write_direct(numpy.full((1, 8), numpy.nan, "f4")))
PYTHON
refused attention_mass kvq-eval inspect mass.h5
refused "'/sets/00/value/minimum'" kvq-eval inspect beyond.h5
refused "'/recipe' attribute says nuq4-1%" kvq-eval inspect recipe.h5
refused cabbage kvq-eval inspect kind.h5
refused "not one of kvq's" kvq-eval inspect foreign.h5
refused centroids kvq-eval inspect nan.h5
