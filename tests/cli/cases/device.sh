# --device: an unknown one is refused; cuda works, or says before anything is read or made what is missing; cpu is as if
# nothing had been said.
refused "--device" kvq-fisher --model "$model" --text "$calibration_text" --device gpu -o calib.h5
refused "--device" kvq-eval perplexity --model "$model" --text "$evaluation_text" --device cuda:x
refused "--device" kvq-fit --calib "$calib" --recipe int4 --device cuda -o q.h5

fisher=(kvq-fisher --model "$model" --text "$calibration_text" --samples 2 --seqlen 32 --threads 2)
runs "${fisher[@]}" -o silent.h5
runs "${fisher[@]}" --device cpu -o said.h5
same_bytes silent.h5 said.h5

code_of "${fisher[@]}" --device cuda -o gpu.h5
if ((code == 0)); then
  code=0
  "${fisher[@]}" --device cuda -o again.h5 >"$out" 2>"$err" || problem "exit code $?"
  same_bytes gpu.h5 again.h5
  grep -aq 'device = "cuda"' gpu.h5 || problem "the file does not say that it was made on the GPU"
  runs "${fisher[@]}" --device cuda --dry-run --json
  [[ $(json "$out" "report['plan']['device_memory_bytes'] > 1e6") == True ]] || problem "no memory of the device"
  exit 0
fi
# No GPU here. Inputs that do not exist: it is said before they are looked at.
((code == 1)) || problem "exit code $code"
before=$(state)
says() {
  fails 1 "--device cuda: " "$@"
  [[ $(wc -l <"$err") == 1 ]] || problem "not one line: $*"
  [[ $(state) == "$before" ]] || problem "files were left or changed by: $*"
}
says "${fisher[@]}" --device cuda -o gpu.h5
says "${fisher[@]}" --device cuda --dry-run
printf 'device = "cuda"\n' >device.toml
before=$(state)
says "${fisher[@]}" --config device.toml -o gpu.h5
for command in "perplexity --text $evaluation_text -o report" "passkey -o report" "tasks --ruler all -o report" "generate --prompt x" "search --text $evaluation_text --target-kl 1 -o search" \
  "experiment none.toml --text $evaluation_text -o experiment"; do
  # shellcheck disable=SC2086  # words
  says kvq-eval $command --model "$model" --device cuda
done
printf 'no text of UTF-8 \xff\n' >bad.txt
before=$(state)
says kvq-fisher --model "$model" --text bad.txt --device cuda -o gpu.h5
