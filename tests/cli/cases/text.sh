# What a text must be, and what it may be.
fisher() { kvq-fisher --model "$model" --seqlen 64 --samples 1 -o out.h5 "$@"; }
perplexity() { kvq-eval perplexity --model "$model" --seqlen 64 "$@"; }
: >empty.txt
printf 'good so far \xff\xfe' >invalid.txt
printf 'zero \0 inside' >nul.txt
printf '\xef\xbb\xbf' >bom-only.txt
echo "short" >short.txt
printf '{"text": "fine"}\n{"text": 3}\n' >bad.jsonl
for tool in fisher perplexity; do
  refused empty.txt $tool --text empty.txt
  refused bom-only.txt $tool --text bom-only.txt
  refused "12" $tool --text invalid.txt
  refused invalid.txt $tool --text invalid.txt
  refused nul.txt $tool --text nul.txt
  refused "tokens; one window of --seqlen 64 needs 64" $tool --text short.txt
  refused bad.jsonl $tool --text bad.jsonl
done
refused 100 kvq-fisher --model "$model" --text "$calibration_text" --seqlen 64 --samples 100000 -o out.h5

# Exactly one window: as many ids as --seqlen. One id more or less is known from the tool itself.
some_text 40 3 >one.txt
runs kvq-eval perplexity --model "$model" --text one.txt --seqlen 2 --max-windows 1 --json
tokens=$(json "$out" "report['tokens']")
runs kvq-eval perplexity --model "$model" --text one.txt --seqlen "$tokens" --json
[[ $(json "$out" "report['windows']") == 1 ]] || problem "one window"
refused "$tokens" kvq-eval perplexity --model "$model" --text one.txt --seqlen $((tokens + 1))
runs kvq-fisher --model "$model" --text one.txt --seqlen "$tokens" --samples 1 -o one.h5
refused "$tokens" kvq-fisher --model "$model" --text one.txt --seqlen $((tokens + 1)) --samples 1 -o out.h5

# A BOM is dropped; CRLF is kept, so the two texts differ.
{ printf '\xef\xbb\xbf'; cat "$evaluation_text"; } >bom.txt
sed 's/$/\r/' "$evaluation_text" >crlf.txt
runs perplexity --text "$evaluation_text" --max-windows 2 --json
plain=$(json "$out" "report['results'][0]['window_nll'], report['tokens']")
runs perplexity --text bom.txt --max-windows 2 --json
[[ $(json "$out" "report['results'][0]['window_nll'], report['tokens']") == "$plain" ]] || problem "a BOM changes the result"
runs perplexity --text crlf.txt --max-windows 2 --json
[[ $(json "$out" "report['results'][0]['window_nll'], report['tokens']") != "$plain" ]] || problem "CRLF was dropped"

# JSONL: plain texts and conversations.
python3 - "$evaluation_text" >lines.jsonl <<'PYTHON'
import json, sys
text = open(sys.argv[1]).read()
for start in range(0, 4000, 500):
    print(json.dumps({"text": text[start:start + 500]}))
PYTHON
runs perplexity --text lines.jsonl --max-windows 2 --json
