# No output or log replaces what the run reads, whatever it is called; a pipe as input is refused, not waited for.
cp "$calib" calib.h5
cp "$thresholds" thresholds.h5
cp -r "$tiny/mha-tied/hf" hf
cp "$model" model.gguf
cp "$calibration_text" text.txt
kvq-fit --recipe nuq3-1% --explain >recipe.toml
ln -s calib.h5 link.h5
ln hf/config.json hard.json
fisher=(kvq-fisher --model model.gguf --text text.txt --samples 1 --seqlen 64)
threshold=(kvq-threshold --calib calib.h5 --outliers 0.01)
fit=(kvq-fit --calib calib.h5 --thresholds thresholds.h5 --recipe recipe.toml)

refused --calib "${threshold[@]}" -o calib.h5 --force
refused --calib "${threshold[@]}" -o link.h5 --force
refused --calib "${fit[@]}" -o calib.h5 --force
refused --thresholds "${fit[@]}" -o thresholds.h5 --force
refused --recipe "${fit[@]}" -o recipe.toml --force
refused --text "${fisher[@]}" -o text.txt --force
refused --model "${fisher[@]}" -o model.gguf --force
refused --model kvq-fisher --model hf --text text.txt --samples 1 --seqlen 64 -o hf/model.safetensors.index.json --force
refused --model kvq-fisher --model hf --text text.txt --samples 1 --seqlen 64 -o hard.json --force
mkdir q && cp calib.h5 q/nuq3-1pct.h5
refused --calib kvq-fit --calib q/nuq3-1pct.h5 --thresholds thresholds.h5 --recipe nuq3-1% -o q --force

# Logs: not onto an input, not onto a file that is no log; onto an earlier log they are appended.
refused --calib "${threshold[@]}" -o out.h5 --log-file calib.h5
refused --text "${fisher[@]}" -o out.h5 --log-file text.txt
refused "--log-file 'nowhere/x': folder 'nowhere' does not exist" "${threshold[@]}" -o out.h5 --log-file nowhere/x
refused "'text.txt' is no folder" "${threshold[@]}" -o out.h5 --log-file text.txt/x
refused "is no log" "${threshold[@]}" -o out.h5 --log-file "hf/../q/../thresholds.h5"
refused "is what -o writes" "${threshold[@]}" -o new.h5 --log-file ./new.h5
refused "'0.01,,0' has an empty place" kvq-threshold --calib calib.h5 --outliers 0.01,,0 -o new.h5
refused "--sinks: '0,' has an empty place" kvq-threshold --calib calib.h5 --sinks=0, -o new.h5
[[ ! -e new.h5 ]] || problem "something was left"
runs "${threshold[@]}" -o out.h5 --log-file log
lines=$(wc -l <log)
runs "${threshold[@]}" -o out.h5 --force --log-file log
(($(wc -l <log) >= 2 * lines)) || problem "the log was not appended to"
runs "${threshold[@]}" -o out.h5 --force --log-file /dev/full
(($(grep -c "warning: --log-file" "$err") == 1)) || problem "a log that cannot be written is not said once"

# A defaults' list is stored as it would be if it had been given.
runs kvq-threshold --calib calib.h5 -o default.h5
runs kvq-threshold --calib calib.h5 --outliers 0.01 --sinks 1 -o given.h5
same_bytes default.h5 given.h5

mkfifo pipe
refused pipe timeout 20 kvq-fisher --model pipe --text text.txt -o o.h5
refused pipe timeout 20 kvq-fisher --model model.gguf --text pipe -o o.h5
refused pipe timeout 20 kvq-threshold --calib pipe -o o.h5
refused pipe timeout 20 kvq-fit --calib calib.h5 --thresholds pipe --recipe nuq3-1% -o o.h5
refused pipe timeout 20 kvq-eval perplexity --model model.gguf --text text.txt --quantizer pipe
refused pipe timeout 20 kvq-eval tasks --model model.gguf --tasks pipe
refused pipe timeout 20 "${fisher[@]}" --config pipe -o o.h5
refused pipe timeout 20 "${fisher[@]}" --log-file pipe -o o.h5
ln -s loop loop
refused loop "${fisher[@]/model.gguf/loop}" -o o.h5
refused loop "${fisher[@]}" -o loop
