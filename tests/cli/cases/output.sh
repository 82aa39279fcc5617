# Output: never replaced without --force, never half there, refused before any work when it cannot be made.
fisher=(kvq-fisher --model "$model" --text "$calibration_text" --samples 1 --seqlen 64)
threshold=(kvq-threshold --calib "$calib" --outliers 0.01)
fit=(kvq-fit --calib "$calib" --thresholds "$thresholds")
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1)

mkdir folder
echo precious >there.h5
ln -s nowhere dangling.h5
all() {  # all CHECK OUTPUT
  "$1" "$2" "${fisher[@]}" -o "$2"
  "$1" "$2" "${threshold[@]}" -o "$2"
  "$1" "$2" "${fit[@]}" --recipe int4 -o "$2"
}
all refused there.h5
all refused dangling.h5
all refused none/out.h5
all refused there.h5/out.h5
refused folder "${fisher[@]}" -o folder
refused folder "${threshold[@]}" -o folder
refused there.h5 "${fit[@]}" --recipe int4 --recipe nuq3-1% -o there.h5
refused there.h5 "${perplexity[@]}" -o there.h5
refused none/report "${perplexity[@]}" -o none/report
[[ $(<there.h5) == precious ]] || problem "the file was changed"

# One recipe into a folder, several into a folder; what is there already is named before anything is fitted.
runs "${fit[@]}" --recipe int4 -o folder
[[ $(ls folder) == int4.h5 ]] || problem "folder: $(ls folder)"
refused int4.h5 "${fit[@]}" --recipe nuq3-1% --recipe int4 -o folder

# --force replaces files, never a pipe or a device.
mkfifo pipe
ln -s /dev/null device
for name in pipe device; do
  refused "is not a regular file" "${fisher[@]}" -o $name --force
  refused "is not a regular file" "${threshold[@]}" -o $name --force
  refused "is not a regular file" "${fit[@]}" --recipe int4 -o $name --force
done
mkdir pipes && mkfifo pipes/report.md
refused "is not a regular file" "${perplexity[@]}" -o pipes --force
rm -r pipes pipe device
for command in fisher threshold; do
  echo precious >there.h5
  declare -n words=$command
  runs "${words[@]}" -o there.h5 --force
  [[ $(head -c 4 there.h5 | tail -c 3) == HDF ]] || problem "$command --force did not replace"
done
runs "${fit[@]}" --recipe int4 -o there.h5 --force
runs "${perplexity[@]}" -o report
refused report.json "${perplexity[@]}" -o report
runs "${perplexity[@]}" -o report --force
is_json report/report.json
# A report beside other files is fine; an empty folder of the user's stays when a run is refused.
mkdir mine && echo keep >mine/note
runs "${perplexity[@]}" -o mine
[[ $(ls mine) == $'note\nreport.csv\nreport.html\nreport.json\nreport.md' ]] || problem "mine: $(ls mine)"
mkdir empty
refused none.h5 "${perplexity[@]}" -o empty --quantizer none.h5
[[ -d empty ]] || problem "the user's empty folder was removed"
refused none.h5 "${perplexity[@]}" -o fresh --quantizer none.h5
