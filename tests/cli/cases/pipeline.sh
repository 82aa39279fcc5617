# The four tools one after another on a tiny model; what they leave is the other cases' input.
some_text 2600 1 >calibration.txt
some_text 1500 7 >evaluation.txt

runs kvq-fisher --model "$model" --text calibration.txt --samples 6 --seqlen 64 --threads 2 -o calib.h5
runs kvq-threshold --calib calib.h5 --outliers 0.01,0.05 --sinks 1 --threads 2 -o thresholds.h5
runs kvq-fit --calib calib.h5 --thresholds thresholds.h5 --recipe nuq3-1% --recipe int4 --recipe nuq2-5% -o quantizers --threads 2
[[ $(ls quantizers) == $'int4.h5\nnuq2-5pct.h5\nnuq3-1pct.h5' ]] || problem "quantizers: $(ls quantizers)"
runs kvq-eval perplexity --model "$model" --text evaluation.txt --seqlen 64 --max-windows 6 --threads 2 -o report \
  --quantizer quantizers/int4.h5 --quantizer quantizers/nuq3-1pct.h5 --quantizer quantizers/nuq2-5pct.h5

# The table for people and the report for programs say the same.
grep -q '^cache ' "$out" || problem "no table"
tail -n 1 "$out" | grep -q '^Recommendation: ' || problem "the last line is no recommendation"
is_json report/report.json
[[ $(ls -A report) == $'report.csv\nreport.html\nreport.json\nreport.md' ]] || problem "report: $(ls -A report)"
[[ $(json report/report.json "[row['name'] for row in report['results']]") == "['none', 'int4', 'nuq3-1%', 'nuq2-5%']" ]] ||
  problem "names in report.json"
[[ $(json report/report.json "report['windows'], report['seqlen'], report['model'], report['text']") == \
   "(6, 64, 'model.gguf', 'evaluation.txt')" ]] || problem "head of report.json"
[[ $(json report/report.json "all(len(row['window_nll']) == 6 for row in report['results'])") == True ]] || problem "window_nll"
[[ $(json report/report.json "report['results'][0]['delta_nll'] == 0 and report['results'][0]['kl_mean'] == 0") == True ]] ||
  problem "the baseline has damage"
[[ $(json report/report.json "all(0 < row['kl_mean'] < 20 and row['bits_counted'] > row['bits_nominal'] for row in report['results'][1:])") == True ]] ||
  problem "damage and counted bits"
# All three quantizers are in the stored settings.
grep -q 'quantizer = \["int4.h5", "nuq3-1pct.h5", "nuq2-5pct.h5"\]' report/report.md || problem "settings in report.md"

# A quantizer of another model, for the refusals.
other=$tiny/gqa-untied/model.gguf
runs kvq-fisher --model "$other" --text calibration.txt --samples 2 --seqlen 64 -o other-calib.h5
runs kvq-threshold --calib other-calib.h5 --outliers 0.01 -o other-thresholds.h5
runs kvq-fit --calib other-calib.h5 --thresholds other-thresholds.h5 --recipe nuq3-1% -o other.h5

# Artifacts name no folder of this machine.
for file in calib.h5 thresholds.h5 quantizers/int4.h5; do
  if grep -qaF "$PWD" "$file" || grep -qaF "$SOURCE" "$file"; then problem "$file holds a path"; fi
done
