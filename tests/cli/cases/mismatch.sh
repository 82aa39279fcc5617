# Artifacts of another model, thresholds of another calibration, a tokenizer that the model does not hold.
refused "$other_quantizer" kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$other_quantizer"
refused "another model" kvq-eval passkey --model "$model" --quantizer "$quantizer" --quantizer "$other_quantizer"
refused "$FIXTURE/other-thresholds.h5" kvq-fit --calib "$calib" --thresholds "$FIXTURE/other-thresholds.h5" --recipe nuq3-1% -o out.h5
# The same model in another format is another file: its weights are the same, its hash is not.
cp -r "$tiny/gqa-untied/hf" hf
python3 - hf/config.json <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))
config["vocab_size"] = 100
json.dump(config, open(sys.argv[1], "w"))
PYTHON
refused vocab kvq-eval perplexity --model hf --text "$evaluation_text" --seqlen 64
refused vocab kvq-fisher --model hf --text "$calibration_text" --seqlen 64 --samples 1 -o out.h5
python3 - hf/config.json <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))
config["vocab_size"] = 320
config["model_type"] = "mystery"
config["architectures"] = ["MysteryForCausalLM"]
json.dump(config, open(sys.argv[1], "w"))
PYTHON
refused ystery kvq-eval perplexity --model hf --text "$evaluation_text" --seqlen 64

# Judging on the text of the calibration is said, and done. All windows: the samples are a few of them.
runs kvq-eval perplexity --model "$model" --text "$calibration_text" --seqlen 64 --quantizer "$quantizer"
grep -q "calibration text" "$err" || problem "no warning of the overlap"
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$quantizer"
if grep -q "calibration text" "$err"; then problem "a warning without an overlap"; fi
