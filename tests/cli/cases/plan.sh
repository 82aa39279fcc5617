# Bytes at any length, and what fits in a memory, without running anything.
runs kvq-eval plan --shape 32,8,128 --recipe nuq4-1% --recipe kvq2 --lengths 1000,131072 --memory 80GB,24GiB --json
cp "$out" plan.json
is_json plan.json
[[ $(json plan.json "[row['name'] for row in report['rows']]") == "['none', 'nuq4-1%', 'kvq2']" ]] || problem "rows"
# 2 · 32 · 8 · 128 · 2 bytes a token
[[ $(json plan.json "report['rows'][0]['lengths'][0]['bytes'], [m['tokens'] for m in report['rows'][0]['longest']]") == "(131072000, [610351, 196608])" ]] ||
  problem "fp16"
[[ $(json plan.json "all(a['longest'][0]['tokens'] < b['longest'][0]['tokens'] for a, b in zip(report['rows'], report['rows'][1:]))") == True ]] ||
  problem "fewer bits, longer contexts"
runs kvq-eval plan --shape 32,8,128 --recipe nuq4-1% --lengths 1000 --memory 80GB --weights-bytes 16GB --batch 4 --json
cp "$out" less.json
[[ $(json less.json "report['rows'][0]['longest'][0]['tokens']") == 122070 ]] || problem "weights and batch"
# A quantizer counts as kvq-eval perplexity forecasts it.
runs kvq-eval plan --model "$model" --quantizer "$quantizer" --lengths 32768 --json
cp "$out" own.json
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer "$quantizer" -o report
[[ $(json own.json "report['rows'][1]['lengths'][0]['bits_counted']") == $(json report/report.json "report['results'][1]['bits_counted_32k']") ]] ||
  problem "bits at 32K"
runs kvq-eval plan --model "$model" --quantizer "$quantizer" --memory 1GB
grep -q '^nuq3-1%' "$out" || problem "table"
refused "either --model or --shape" kvq-eval plan
refused "either --model or --shape" kvq-eval plan --model "$model" --shape 32,8,128
for shape in 32,8 32,8,128,1 0,8,128 32,8,x "" 32,8,99999; do
  [[ -z $shape ]] || refused "--shape $shape" kvq-eval plan --shape "$shape"
done
refused "is for" kvq-eval plan --shape 32,8,128 --quantizer "$quantizer"
refused "no cache" kvq-eval plan --shape 32,8,128 --recipe int3:range=window
refused "blocks of 32" kvq-eval plan --shape 32,8,40 --recipe q4_0
refused "--memory" kvq-eval plan --shape 32,8,128 --memory 80XB
for size in -1 -5GB 1.5.2GB GB 5EB0 80XB 1e9 .5GB; do
  refused "'$size' is not a size" kvq-eval plan --shape 32,8,128 --memory "$size"
  refused "'$size' is not a size" kvq-eval plan --shape 32,8,128 --memory 80GB --weights-bytes "$size"
done
runs kvq-eval plan --shape 32,8,128 --memory "1.5GB,1.5 gib,2k,8192" --json
[[ $(json "$out" "[m['memory'] for m in report['rows'][0]['longest']]") == "[1500000000, 1610612736, 2000, 8192]" ]] || problem "sizes"
refused "more than" kvq-eval plan --shape 32,8,128 --memory 99999PB
refused "none is given" kvq-eval plan --shape 32,8,128 --weights-bytes 2GB
refused "must be even" kvq-eval plan --shape 2,2,7 --recipe kvq2
refused "--recipe int4 is given twice" kvq-eval plan --shape 32,8,128 --recipe int4 --recipe int4
refused "--memory: 80000000000 is given twice" kvq-eval plan --shape 32,8,128 --memory 80GB,80000MB
refused "is given twice" kvq-eval plan --model "$model" --quantizer "$quantizer" --quantizer "$quantizer"
for recipe in int4:lo=2 none:evict=h2o,budget=25%; do
  refused "layers whose queries see" kvq-eval plan --model "$tiny/gemma3/model.gguf" --recipe "$recipe"
done
refused "weights alone" kvq-eval plan --shape 32,8,128 --memory 1GB --weights-bytes 2GB
