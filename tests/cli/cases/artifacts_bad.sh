# Artifacts that others may have changed: newer schema, incomplete, NaN, a missing dataset, unsorted centroids.
python_with_h5py
change() {  # change FROM TO PYTHON: `file` is the open copy
  cp "$1" "$2"
  chmod u+w "$2"
  "$python" -c "
import h5py, numpy, sys
def datasets(group):
    found = []
    group.visititems(lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return found
file = h5py.File(sys.argv[1], 'r+')
def pick():  # a dataset of floats that every reader of the file needs
    return next(item for item in datasets(file) if item.name.endswith(('00/key', '/lower')))
$3
file.close()" "$2"
}
nan='
values = pick()[...]; values.flat[1] = numpy.nan; pick()[...] = values'
newer='file.attrs["schema_version"] = "9.0"'
incomplete='file.attrs["complete"] = 0'
unmarked='del file.attrs["complete"]'
shorter='
name = pick().name
values = file[name][...]; del file[name]; file[name] = values.reshape(-1)[:-1]'
for what in newer incomplete unmarked nan shorter; do
  change "$calib" bad.h5 "${!what}"
  refused bad.h5 kvq-threshold --calib bad.h5 --outliers 0.01 -o out.h5
  change "$quantizer" bad.h5 "${!what}"
  refused bad.h5 kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer bad.h5
  change "$thresholds" bad.h5 "${!what}"
  refused bad.h5 kvq-fit --calib "$calib" --thresholds bad.h5 --recipe nuq3-1% -o out.h5
done
change "$quantizer" bad.h5 'file.attrs["rope_theta"] = 12345.0'
for command in "perplexity --text $evaluation_text --seqlen 64" passkey; do
  # shellcheck disable=SC2086  # several words
  refused "theta 12345" kvq-eval $command --model "$model" --quantizer bad.h5
done
change "$quantizer" bad.h5 '
for data in datasets(file):
    if data.name.endswith("decoded"):
        data[...] = data[...] * 1.5; break
else: sys.exit("no decoded")'
refused "Q-Norm only" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer bad.h5
change "$quantizer" bad.h5 "$newer"
refused 9.0 kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer bad.h5
change "$quantizer" bad.h5 '
for data in datasets(file):
    if "centroids" in data.name:
        data[...] = data[...][..., ::-1]; break
else: sys.exit("no centroids")'
refused bad.h5 kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer bad.h5
# Numbers beside datasets.
for number in 'file["layers/00/key"].attrs["scale"] = 1e300' 'file["layers/00/key"].attrs["scale"] = 1.5' 'file["layers/00/value_grad"].attrs["scale"] = -2.0'; do
  change "$calib" bad.h5 "$number"
  refused "a power of two is needed" kvq-threshold --calib bad.h5 --outliers 0.01 -o out.h5
done
for number in 'file.attrs["bits_nominal"] = numpy.nan' 'file.attrs["bits_counted_32k"] = -1.0' 'file.attrs["table_bytes"] = -1' 'del file.attrs["table_bytes"]'; do
  change "$quantizer" bad.h5 "$number"
  refused bad.h5 kvq-eval inspect bad.h5
done
# What no calibration gives: all tools that read it say the same.
for what in 'file["sets/00/key/maximum"][...] = 0' 'file["sets/00/value/minimum"][...] = 1e6' \
  'low, high = (file["sets/00/key/" + name][...] for name in ("minimum", "maximum")); file["sets/00/key/minimum"][...] = high; file["sets/00/key/maximum"][...] = low' \
  'file["sets/00/key/lower"][0, 0, 0] -= 100' 'file["sets/00/key/capped_outlier_rate"][0] += 0.5'; do
  change "$thresholds" bad.h5 "$what"
  refused "bad.h5: '/sets/00/" kvq-fit --calib "$calib" --thresholds bad.h5 --recipe nuq3-1% -o out.h5
  refused "$(sed 's/^kvq-fit: //' "$err")" kvq-eval inspect bad.h5
done
change "$calib" bad.h5 'moment = file["layers/01/query_moment"]; moment[...] = -moment[...]'
refused "bad.h5: '/layers/01/query_moment' is -" kvq-eval inspect bad.h5
runs kvq-fisher --model "$model" --text "$calibration_text" --samples 2 --seqlen 64 --forward-only -o forward.h5
for what in 'file["layers/00/key_metric"][...] = 0' 'file["layers/01/attention_mass"][...] *= 2' 'file["layers/01/attention_mass"][0] = -1'; do
  change forward.h5 bad.h5 "$what"
  refused "bad.h5: '/layers/0" kvq-fit --calib bad.h5 --recipe nuq3:feedback --metric query -o out.h5
  refused "$(sed 's/^kvq-fit: //' "$err")" kvq-eval inspect bad.h5
done
# What a file holds is quoted on one line, without what a terminal would obey, and not at any length.
change "$quantizer" bad.h5 'file.attrs["kvq_schema"] = "a\nb\x1b[31m" + 60000 * "c"'
refused 'a\nb\x1b[31m' kvq-eval inspect bad.h5
[[ $(wc -l <"$err") == 1 && $(wc -c <"$err") -lt 400 && $(cat "$err") != *$'\x1b'* ]] || problem "a message of $(wc -c <"$err") bytes"
