# experiment: all steps from one file; what is there is used; a kill loses nothing that was finished.
cat >small.toml <<'TOML'
title = "Small"
question = "Does it run?"
seqlen = 64
windows = 5
[[calibration]]
name = "few"
samples = 2
seqlen = 64
[[calibration]]
name = "more"
samples = 4
seqlen = 64
[[cell]]
recipes = ["nuq3-1%", "int4"]
[[cell]]
recipes = ["nuq2-1%:sink=2"]
calibrations = ["more"]
only-layers = "each"
[[claim]]
statement = "more is better"
better = "nuq3-1% (more)"
worse = "nuq3-1% (few)"
TOML
run=(kvq-eval experiment small.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" --threads 2)
runs "${run[@]}" --dry-run
grep -q '^5 cells, 0 finished' "$out" || problem "plan"
(($(grep -c '^    kvq-fisher ' "$out") == 2)) || problem "calibrations of the plan"
[[ $(ls) == small.toml ]] || problem "a plan left files"
runs "${run[@]}" -o x
grep -qE '^nuq3-1% \(few\) ' "$out" || problem "table"
grep -qE '^more is better ' "$out" || problem "claim"
grep -qE 'class="answer">(Holds|Does not hold|Undecided): more is better\.<' x/report.html || problem "the answer to the question"
runs python3 "$SOURCE/tests/cli/check_html.py" x
grep -q "ΔNLL of nuq3-1% by calibration" x/report.html || problem "matrix"
(($(ls x/cells | wc -l) == 5)) || problem "cells: $(ls x/cells)"
[[ ! -e x/runs ]] || problem "runs left: $(ls x/runs)"
cp x/report.json first.json
find x -name '*.h5' -o -name '*.json' -path '*cells*' | sort | xargs stat -c '%n %Y %s' >before

# The same again: nothing is run, the report says the same.
runs "${run[@]}" -o x --dry-run
[[ $(cat "$out") == "5 cells, 5 finished; still to be run:" ]] || problem "a second plan"
runs "${run[@]}" -o x
same_bytes first.json x/report.json

# One cell more: only its steps.
sed 's/"int4"/"int4", "nf3"/' small.toml >larger.toml
runs "${run[@]/small/larger}" -o x --dry-run
[[ $(grep -c '^    ' "$out") == 3 ]] || problem "steps of the larger plan: $(cat "$out")"
runs "${run[@]/small/larger}" -o x
find x -name '*.h5' -o -name '*.json' -path '*cells*' | sort | xargs stat -c '%n %Y %s' >after
[[ -z $(comm -23 before after) ]] || problem "files were made again: $(comm -23 before after)"
(($(wc -l <after) == $(wc -l <before) + 4)) || problem "two quantizers and two cells more"

# Questions besides: their rows stand in the report, and one recipe more asks only its own.
sed 's/^\[\[cell\]\]$/[[cell]] # asked/; /^calibrations = /d; /^only-layers/d' small.toml >asked.toml
printf '[passkey]\nlengths = [900]\ndepths = 2\n[ruler]\ntasks = "niah-single"\nlengths = 1500\nsamples = 2\n' >>asked.toml
runs "${run[@]/small/asked}" -o x --dry-run
grep -q '^18 cells, 4 finished' "$out" || problem "plan with questions: $(head -1 "$out")"
(($(grep -cE '^    kvq-eval (passkey|tasks) ' "$out") == 2)) || problem "questions of the plan"
runs "${run[@]/small/asked}" -o x
grep -qE '^nuq3-1% \(few\) +[0-2]/2$' "$out" || problem "passkey table"
grep -qE '^niah-single 1500 +2 ' "$out" || problem "tasks table"
names='[row["name"] for row in report["passkey"]["results"]]'
[[ $(json x/report.json "$names") == "$(json x/report.json "${names/passkey/tasks}")" ]] || problem "rows of the questions"
[[ $(json x/report.json "$names") == *"'nuq3-1% (more)'"* ]] || problem "names of the rows"
sed 's/"int4"/"int4", "nf3"/' asked.toml >asked_more.toml
runs "${run[@]/small/asked_more}" -o x --dry-run
(($(grep -c '^    ' "$out") == 2)) || problem "steps of the larger questions: $(cat "$out")"
for bad in 's/"niah-single"/"niah"/ tasks' 's/lengths = \[900\]/lengths = [0]/ lengths' 's/depths = 2/deep = 2/ deep' \
  's/samples = 2$/samples = 0/ samples'; do
  sed "${bad% *}" asked.toml >bad.toml
  refused "${bad##* }" "${run[@]/small/bad}" -o z
done

# One command reproduces a cell: the numbers of a direct run of the tools.
few=$(ls x/quantizers/*/int4.h5 | head -1)
runs kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 5 --threads 2 --quantizer "$few" --json
sha=$(sha256sum "$few" | cut -d' ' -f1)
[[ $(json "$out" 'report["results"][1]["window_nll"]') == \
   "$(json first.json "[r['window_nll'] for r in report['evaluations'][0]['results'] if r['sha256'] == '$sha'][0]")" ]] || problem "numbers"

# Killed hard at several points, the next run ends the same.
for delay in 0.3 0.8 1.5; do
  "${run[@]}" -o y >/dev/null 2>&1 &
  sleep $delay
  kill -KILL $! 2>/dev/null || true
  wait $! 2>/dev/null || true
  sleep 0.3
done
runs "${run[@]}" -o y
numbers='[(r["name"], r["window_nll"], r["bits_counted"]) for r in report["evaluations"][0]["results"]]'
[[ $(json y/report.json "$numbers") == "$(json first.json "$numbers")" ]] || problem "after kills"

# A cell that something cut short is named, with the way out.
cell=$(ls y/cells/*.json | head -1)
cp "$cell" whole.json && head -c 100 whole.json >"$cell"
refused "once it is deleted" "${run[@]}" -o y
rm "$cell"
runs "${run[@]}" -o y
[[ $(json y/report.json "$numbers") == "$(json first.json "$numbers")" ]] || problem "after a cell was deleted"

# A cell that holds another's results, or those of another model or text, is named, with the way out.
held() {  # held TEXT PYTHON: after PYTHON has changed cells, by name of their row, the run refuses
  cp -r y changed
  python3 -c '
import glob, json, shutil, sys
cells = {}
for path in glob.glob("changed/cells/*.json"):
    report = json.load(open(path))
    cells.setdefault(report["results"][1]["name"], []).append(path)
def edit(path, change):
    report = json.load(open(path))
    change(report)
    json.dump(report, open(path, "w"))
exec(sys.argv[1])' "$2"
  refused "$1" "${run[@]}" -o changed
  grep -q "changed/cells/.*; the experiment makes it again once it is deleted" "$err" || problem "the way out: $(cat "$err")"
  rm -r changed
}
held "holds results of 'int4', not of 'nuq3-1%'" 'shutil.copy(cells["int4"][0], cells["nuq3-1%"][0])'
held "holds results of another file of 'int4'" 'shutil.copy(*cells["int4"])'
held "is of another model" 'edit(cells["int4"][0], lambda report: report.update(model_sha256="0" * 64))'
held "is of another text" 'edit(cells["int4"][0], lambda report: report.update(text_sha256="0" * 64))'

# Two runs on one folder: the second says so, and harms nothing.
exec 9<y
flock 9
fails 1 "another run is working on 'y'" "${run[@]}" -o y
exec 9<&-
runs "${run[@]}" -o y

# What is wrong in the file is named with its line and key.
bad() { sed "$2" small.toml >bad.toml && refused "$1" "${run[@]/small/bad}" -o z; rm bad.toml; }
bad "'cell[0].recipes' holds 'nuq9'" 's/"int4"/"nuq9"/'
bad "'calibration[1].name' 'few' stands for two calibrations" 's/"more"$/"few"/'
bad "is not a known key" 's/^windows/window/'
bad "holds 'most'; known: few, more" 's/\["more"\]/["most"]/'
bad "bad.toml, line 18: 'cell[1].only-layers' is 0,77: the model has layers 0 to" 's/"each"/"0,77"/'
bad "bad.toml, line 18: 'cell[1].only-layers' is most: 'most' is no layer" 's/"each"/"most"/'
bad "'calibration[0].samples' must be an integer" 's/^samples = 2/samples = "2"/'
bad "'cell[1].only-layers' must be a string" 's/"each"/1/'
bad "bad.toml, line 15: 'cell[0].texts' holds 'prose': the experiment needs a text 'prose': --text prose=PATH" 's/^recipes = .*"int4".*/&\ntexts = ["prose"]/'
bad "bad.toml, line 14: 'cell[0].recipes' cannot be used: " 's/"int4"/"q8_0"/'
bad "bad.toml, line 10: 'calibration[1].name' is wrong: 'more' is the same as 'few'" 's/^samples = 4/samples = 2/; s/^name = "few"/&/'
bad "which no cell makes" 's/better = "nuq3-1%/better = "nuq4-1%/'
bad "'title' is missing" '/^title/d'
# Questions that no prompt of that length holds are refused before anything is calibrated.
ask() { printf '%b' "$2" | cat small.toml - >asks.toml; refused "$1" kvq-eval experiment asks.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" -o z; }
ask "asks.toml, line 25: 'ruler.lengths' holds 30: the shortest prompt of niah-single" '[ruler]\ntasks = ["niah-single"]\nlengths = [1500, 30]\n'
ask "asks.toml, line 25: 'ruler.lengths' holds 1500 twice" '[ruler]\ntasks = ["niah-single"]\nlengths = [1500, 1500]\n'
ask "asks.toml, line 25: 'passkey.prompt' is 'chat': chat template: the model has none" '[passkey]\nlengths = [900]\nprompt = "chat"\n'
ask "asks.toml, line 24: 'passkey.lengths' holds 9: " '[passkey]\nlengths = [900, 9]\n'
sed 's/samples = 4/samples = 100000/' small.toml >large.toml
refused "large.toml, line 11: 'calibration[1].samples' is 100000: the text holds" kvq-eval experiment large.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" -o z
sed 's/^seqlen = 64/seqlen = 1000000/' small.toml >large.toml
refused "large.toml, line 3: 'seqlen' is 1000000: " "${run[@]/small/large}" -o z
[[ $(cat "$err") != *--* ]] || problem "a flag that the file has not: $(cat "$err")"
sed '0,/^seqlen = 64/! s/^seqlen = 64/seqlen = 1000000/' small.toml >large.toml
refused "large.toml, line 8: 'calibration[0].seqlen' is 1000000: " "${run[@]/small/large}" -o z
[[ $(cat "$err") != *--* ]] || problem "a flag that the file has not: $(cat "$err")"
refused "kvq-eval: --samples: 'few' and 'more' differ by their samples only" "${run[@]}" --samples 1 -o z
refused "--calibration-text" kvq-eval experiment small.toml --model "$model" --text "$evaluation_text" -o z
# What a calibration cannot give is said before it is made; caches that only evict need none.
printf '%s\n' 'title = "t"' 'question = "q"' 'seqlen = 64' 'windows = 2' '[[calibration]]' 'samples = 2' 'seqlen = 64' 'query-heads = "max"' \
  '[[cell]]' 'recipes = ["int4", "kvq2"]' >signs.toml
refused "need gradients with their sign" kvq-eval experiment signs.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" -o z
sed -e '/query-heads/d' -e 's/"int4", //' signs.toml >metric.toml
metric() { sed "$2" metric.toml >changed.toml && refused "$1" kvq-eval experiment changed.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" -o z; }
refused "kvq-eval: --samples 100001: the text holds" kvq-eval experiment metric.toml --model "$model" --calibration-text "$calibration_text" \
  --text "$evaluation_text" --samples 100001 -o z
metric "keys need gradients (for the block Fisher matrix and the weights of codebooks)" 's/^samples/forward-only = true\n&/'
grep -q "changed.toml, line 10: 'cell\[0\].recipes' cannot be used: .* use metric=query and weights=query, or calibrate" "$err" || problem "$(cat "$err")"
[[ $(cat "$err") != *--* ]] || problem "a flag that the file has not: $(cat "$err")"
metric "'key_metric' of every layer" 's/kvq2/kvq2:metric=query/'
metric "does not go with forward-only" 's/^samples/forward-only = true\nquery-heads = "max"\n&/'
metric "forward-only: gradients of weights need a backward pass" 's/^samples/forward-only = true\n&/; s/^recipes.*/&\nweights = ["w4"]/; s/kvq2/int4/'
rm changed.toml
printf '%s\n' 'title = "t"' 'question = "q"' 'seqlen = 64' 'windows = 2' '[[calibration]]' 'name = "both"' 'samples = 3' 'seqlen = 64' \
  'metrics = true' '[[calibration]]' 'name = "one"' 'samples = 3' 'seqlen = 64' 'forward-only = true' '[[cell]]' 'recipes = ["kvq3:metric=query"]' \
  '[[cell]]' 'recipes = ["kvq3"]' 'calibrations = ["both"]' >metric.toml
runs kvq-eval experiment metric.toml --model "$model" --calibration-text "$calibration_text" --text "$evaluation_text" --threads 2 -o metric
[[ $(json metric/report.json "[row['name'] for row in report['evaluations'][0]['results']]") == \
   "['none', 'kvq3:metric=query (both)', 'kvq3:metric=query (one)', 'kvq3 (both)']" ]] || problem "metrics: $(json metric/report.json "[row['name'] for row in report['evaluations'][0]['results']]")"
rm -r metric
printf '%s\n' 'title = "t"' 'question = "q"' 'seqlen = 64' 'windows = 2' '[[cell]]' \
  'recipes = ["none:evict=h2o,budget=50%", "none:evict=first-recent,budget=25%"]' >evict.toml
runs kvq-eval experiment evict.toml --model "$model" --text "$evaluation_text" -o evict
[[ $(json evict/report.json "[(row['name'], row['bits_counted'] < 11) for row in report['evaluations'][0]['results']]") == \
  "[('none', False), ('none:evict=h2o,budget=50%', True), ('none:evict=first-recent,budget=25%', True)]" ]] || problem "evict only"
[[ ! -e evict/calibrations ]] || problem "calibrated for nothing"
rm -r evict
refused "-o is missing" "${run[@]}"
# The file may stand behind an option that can be given several times.
runs kvq-eval experiment --model "$model" --text "$evaluation_text" --calibration-text "$calibration_text" small.toml --dry-run
refused "is the same text as" "${run[@]}" --text "again=$evaluation_text" -o z
echo short >short.txt
refused "short.txt" "${run[@]}" --text short=short.txt -o z
mkdir -p other && echo '{}' >other/report.json
refused "that no experiment made" "${run[@]}" -o other
refused "small.toml, line 18: 'cell[1].only-layers' needs --cache simulated" "${run[@]}" --cache packed -o z
refused none.toml "${run[@]/small/none}" -o z
for _ in $(seq 70); do cat "$calibration_text"; done >much.txt  # 64 sequences of 2048 tokens
for file in "$SOURCE"/configs/experiments/*.toml; do
  texts=()
  for label in prose code math languages; do
    { cat "$evaluation_text" "$evaluation_text"; echo "$label"; } >"$label.txt"  # a window of 8192 tokens
    texts+=(--calibration-text "$label=much.txt" --text "$label=$label.txt")
  done
  if grep -qE '"q4_0"|outlier-channels|pq:m=' "$file"; then  # the tiny model's heads are too narrow: said before a calibration
    refused "of 8 channels" kvq-eval experiment "$file" --model "$model" "${texts[@]}" -o z
    python3 -c "
import re, sys
text = re.sub(r', \"(q[48]_0|[^\"]*outlier-channels[^\"]*)\"', '', open(sys.argv[1]).read())
text = re.sub(r'pq:m=[0-9]+', 'pq:m=4', text)
head, *claims = text.split('[[claim]]')
print('[[claim]]'.join([head, *(claim for claim in claims if 'q4_0' not in claim)]))" "$file" >narrow.toml
    file=narrow.toml
  fi
  sed 's/^lengths = \[1536\]/lengths = [2048]/' "$file" >asked.toml  # a token is hardly more than a byte here
  runs kvq-eval experiment asked.toml --model "$model" "${texts[@]}" --dry-run
done
