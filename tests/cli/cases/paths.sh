# Paths that begin with a dash, hold spaces, commas, '#', '=' or quotes; paths with any bytes.
cp "$evaluation_text" "./-file.txt"
cp "$evaluation_text" "a b, #1 'x' \"y\".txt"
cp "$evaluation_text" "domain=x.txt"
cp "$evaluation_text" $'latin\xe9.txt'
cp "$model" "./-model 1.gguf"
cp "$quantizer" "./-q 1.h5"
for text in "-file.txt" "a b, #1 'x' \"y\".txt" "domain=x.txt" $'latin\xe9.txt'; do
  runs kvq-eval perplexity --model "-model 1.gguf" --text "$text" --quantizer "-q 1.h5" --seqlen 64 --max-windows 1 --json
  is_json "$out"
  runs kvq-eval perplexity "--model=-model 1.gguf" "--text=$text" "--quantizer=-q 1.h5" --seqlen 64 --max-windows 1 -o "-report"
  is_json "./-report/report.json"
  rm -r "./-report"
  runs kvq-fisher --model "-model 1.gguf" --text "$text" --seqlen 64 --samples 1 -o "-out 1.h5"
  runs kvq-threshold --calib "-out 1.h5" --outliers 0.01 -o "-t h.h5"
  runs kvq-fit --calib "-out 1.h5" --thresholds "-t h.h5" --recipe nuq3-1% -o "-q u.h5"
  rm ./-out* ./-t* "./-q u.h5"
done
# An option as another's value is a slip that is noticed.
refused --text kvq-eval perplexity --model --text "$evaluation_text"
