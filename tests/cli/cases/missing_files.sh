# Every path of every tool: a file that is not there, a folder where a file is needed, a file where a folder is needed.
mkdir folder
echo "not an artifact" >plain
for bad in none.h5 folder plain /dev/null; do
  refused "$bad" kvq-threshold --calib "$bad" -o out.h5
  refused "$bad" kvq-fit --calib "$bad" --recipe int4 -o out.h5
  refused "$bad" kvq-fit --calib "$calib" --thresholds "$bad" --recipe nuq3-1% -o out.h5
  refused "$bad" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$bad"
  refused "$bad" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$quantizer" --quantizer "$bad"
  refused "$bad" kvq-eval passkey --model "$model" --quantizer "$bad"
  refused "$bad" kvq-eval perplexity --model "$bad" --text "$evaluation_text" --seqlen 64
  refused "$bad" kvq-eval passkey --model "$bad"
  refused "$bad" kvq-fisher --model "$bad" --text "$calibration_text" --seqlen 64 -o out.h5
done
for bad in none.txt folder /dev/null; do
  refused "$bad" kvq-fisher --model "$model" --text "$bad" --seqlen 64 -o out.h5
  refused "$bad" kvq-fisher --model "$model" --text "$calibration_text" --text "code=$bad" --seqlen 64 -o out.h5
  refused "$bad" kvq-eval perplexity --model "$model" --text "$bad" --seqlen 64
done
# Artifacts in each other's place.
refused "$calib" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$calib"
refused "$quantizer" kvq-threshold --calib "$quantizer" -o out.h5
refused "$thresholds" kvq-fit --calib "$thresholds" --recipe int4 -o out.h5
refused "$calib" kvq-fit --calib "$calib" --thresholds "$calib" --recipe nuq3-1% -o out.h5
refused none.toml kvq-threshold --config none.toml
refused folder kvq-threshold --config folder
# Pipes in a model's folder are refused, not waited for.
for name in config.json tokenizer.json tokenizer_config.json model.safetensors; do
  rm -rf piped
  cp -r "$tiny/gqa-untied/hf" piped
  chmod -R u+w piped
  rm -f "piped/$name"
  mkfifo "piped/$name"
  refused "$name: is not a regular file" timeout 20 kvq-eval perplexity --model piped --text "$evaluation_text" --seqlen 64
done
