# Damaged files: a few cuts of each kind through the tools (every byte is tried in the unit tests).
size() { stat -c %s "$1"; }
cut_to() { head -c "$2" "$1" >"$3"; }
for bytes in 0 3 4 20 100 1000 $(($(size "$model") / 2)) $(($(size "$model") - 1)); do
  cut_to "$model" "$bytes" cut.gguf
  refused cut.gguf kvq-eval perplexity --model cut.gguf --text "$evaluation_text" --seqlen 64
  refused cut.gguf kvq-fisher --model cut.gguf --text "$calibration_text" --seqlen 64 --samples 1 -o out.h5
done
cp -r "$tiny/gqa-untied/hf" hf
for bytes in 0 7 8 100 1000 $(($(size "$tiny/gqa-untied/hf/model.safetensors") - 1)); do
  cut_to "$tiny/gqa-untied/hf/model.safetensors" "$bytes" hf/model.safetensors
  refused model.safetensors kvq-eval perplexity --model hf --text "$evaluation_text" --seqlen 64
done
cp "$tiny/gqa-untied/hf/model.safetensors" hf/
for file in config.json tokenizer.json; do
  cut_to "$tiny/gqa-untied/hf/$file" 200 "hf/$file"
  refused "$file" kvq-eval perplexity --model hf --text "$evaluation_text" --seqlen 64
  rm "hf/$file"
  refused "$file" kvq-eval perplexity --model hf --text "$evaluation_text" --seqlen 64
  cp "$tiny/gqa-untied/hf/$file" hf/
done
for bytes in 0 8 100 600 2048 $(($(size "$quantizer") / 2)) $(($(size "$quantizer") - 1)); do
  cut_to "$quantizer" "$bytes" cut.h5
  refused cut.h5 kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer cut.h5
done
for bytes in 0 8 600 $(($(size "$calib") / 2)) $(($(size "$calib") - 1)); do
  cut_to "$calib" "$bytes" cut.h5
  refused cut.h5 kvq-threshold --calib cut.h5 -o out.h5
  refused cut.h5 kvq-fit --calib cut.h5 --recipe int4 -o out.h5
done
for bytes in 0 600 $(($(size "$thresholds") / 2)) $(($(size "$thresholds") - 1)); do
  cut_to "$thresholds" "$bytes" cut.h5
  refused cut.h5 kvq-fit --calib "$calib" --thresholds cut.h5 --recipe nuq3-1% -o out.h5
done
