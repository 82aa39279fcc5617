# The disk fills up during a run: exit 1, the reason, no half output, and what can be resumed is kept.
can_mount || skip "no mount namespaces here"
mkdir disk
full_disk() {
  mount -t tmpfs -o size=64k none disk
  code_of kvq-fisher --model "$model" --text "$calibration_text" --samples 6 --seqlen 64 --threads 2 -o disk/calib.h5
  ((code == 1)) || problem "exit code $code on a full disk"
  grep -qi "space" "$err" || problem "the full disk is not named"
  [[ ! -e disk/calib.h5 ]] || problem "half a file was left"
  [[ -z $(find disk -name '*.part*') ]] || problem "a temporary file was left"
  # The user makes room and goes on: the same bytes as an uninterrupted run.
  mount -o remount,size=8m disk
  runs kvq-fisher --model "$model" --text "$calibration_text" --samples 6 --seqlen 64 --threads 2 -o disk/calib.h5
  same_bytes disk/calib.h5 "$calib"
  [[ $(ls -A disk) == calib.h5 ]] || problem "left beside the result: $(ls -A disk)"

  mount -o remount,size=4k disk 2>/dev/null || true
  head -c 10M /dev/zero >disk/ballast 2>/dev/null || true
  for command in "kvq-threshold --calib $calib --outliers 0.01 -o disk/t.h5" "kvq-fit --calib $calib --recipe int4 -o disk/q.h5" \
                 "kvq-eval perplexity --model $model --text $evaluation_text --seqlen 64 --max-windows 2 -o disk/report"; do
    # shellcheck disable=SC2086  # no blanks in these paths but the scratch folder's, which has none
    code_of $command
    ((code == 1)) || problem "exit code $code on a full disk: $command"
    grep -qi "space" "$err" || problem "the full disk is not named: $command"
  done
  [[ ! -e disk/t.h5 && ! -e disk/q.h5 && ! -e disk/report/report.json ]] || problem "half an output was left"
  [[ -z $(find disk -name '*.part*') ]] || problem "a temporary file was left"
}
export -f full_disk runs same_bytes code_of problem
export model calib calibration_text evaluation_text out err
unshare --mount bash -euo pipefail -c full_disk

# Standard output on a full device, or closed, is a failure too; reports are written all the same.
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1)
for command in "${perplexity[*]} --json" "kvq-eval --help" "kvq-fit --version" "kvq-eval passkey --help"; do
  code=0
  # shellcheck disable=SC2086  # as above
  $command >/dev/full 2>"$err" || code=$?
  ((code == 1)) || problem "exit code $code with a full standard output: $command"
  grep -q "standard output" "$err" || problem "standard output is not named: $command"
  code=0
  # shellcheck disable=SC2086
  $command >&- 2>"$err" || code=$?
  ((code == 1)) || problem "exit code $code with a closed standard output: $command"
done
code=0
"${perplexity[@]}" -o unseen >&- 2>"$err" || code=$?
((code == 1)) || problem "exit code $code with a closed standard output"
[[ $(ls -A unseen | sort | tr '\n' ' ') == "report.csv report.html report.json report.md " ]] || problem "reports: $(ls -A unseen)"
is_json unseen/report.json
# A closed stream's number is given to no file.
"${perplexity[@]}" -o closed <&- >&- 2>&- && problem "no error"
is_json closed/report.json
! grep -q "^cache" closed/report.json || problem "the table is in a report"
