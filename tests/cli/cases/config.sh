# --config FILE.toml: the options of the command line, for every tool; the command line wins; a wrong key is refused.
cp "$calibration_text" "text, with #1 and spaces.txt"
cat >fisher.toml <<TOML
# a comment
model = "$model"
text = ["text, with #1 and spaces.txt"]
samples = 6
seqlen = 64
threads = 2
output = "calib.h5"
TOML
runs kvq-fisher --config fisher.toml
runs kvq-fisher --config fisher.toml -o again.h5 --samples 2
[[ $(stat -c %s again.h5) -lt $(stat -c %s calib.h5) ]] || problem "the command line does not win"
cat >threshold.toml <<TOML
calib = "$calib"
outliers = [0.01, 0.05]
sinks = [1]
threads = 2
output = "thresholds.h5"
TOML
runs kvq-threshold --config threshold.toml
same_bytes thresholds.h5 "$thresholds"
cat >fit.toml <<TOML
calib = "$calib"
thresholds = "$thresholds"
recipe = ["nuq3-1%", "int4", "nuq2-5%"]
output = "quantizers"
quiet = true
TOML
runs kvq-fit --config fit.toml
[[ ! -s $err ]] || problem "quiet = true"
same_bytes "quantizers/$(basename "$quantizer")" "$quantizer"
cat >eval.toml <<TOML
model = "$model"
text = "$evaluation_text"
seqlen = 64
max-windows = 1
quantizer = ["$quantizer", "quantizers/int4.h5"]
json = true
TOML
runs kvq-eval perplexity --config eval.toml
[[ $(json "$out" "len(report['results'])") == 3 ]] || problem "results of eval.toml"
runs kvq-eval --config eval.toml perplexity
# Tables named like a command; those of other commands do not matter.
{ echo '[perplexity]'; cat eval.toml; echo '[passkey]'; echo 'lengths = [900]'; } >tables.toml
runs kvq-eval perplexity --config tables.toml
is_json "$out"

# A wrong key is refused by every tool; how a file can be wrong is tried on one with and one without a subcommand.
printf 'threads = 1\nthread = 2\n' >bad.toml
for tool in kvq-fisher kvq-threshold kvq-fit "kvq-eval perplexity" "kvq-eval passkey"; do
  # shellcheck disable=SC2086  # two words
  refused "line 2: 'thread'" $tool --config bad.toml
  grep -q "threads" "$err" || problem "the known keys are not named"
done
for tool in kvq-fisher "kvq-eval passkey"; do
  # shellcheck disable=SC2086  # two words
  {
    echo 'threads = 0' >bad.toml
    refused --threads $tool --config bad.toml
    echo 'threads = ' >bad.toml
    refused "line 1" $tool --config bad.toml
    printf 'threads = 1\nthreads = 2\n' >bad.toml
    refused "line 2" $tool --config bad.toml
    echo 'threads = 2020-01-01' >bad.toml
    refused "threads" $tool --config bad.toml
    echo 'threads = [1, 2]' >bad.toml
    refused "threads" $tool --config bad.toml
    printf '[threads]\nx = 1\n' >bad.toml
    refused "threads" $tool --config bad.toml
    echo 'config = "x.toml"' >bad.toml
    refused "config" $tool --config bad.toml
  }
done
# A value of another type is refused, in arrays, too; not taken for one.
wrong() {
  echo "$1" >bad.toml
  refused "line 1: '${1%% *}' must be" "${@:2}" --config bad.toml
}
for value in 64.0 6.4e1 true; do
  wrong "seqlen = $value" kvq-fisher --model "$model" --text "$calibration_text" -o x.h5
  wrong "lengths = [900, $value]" kvq-eval passkey --model "$model"
done
for value in 2 -1 1.0 '"yes"'; do
  wrong "force = $value" kvq-threshold --calib "$calib" -o x.h5
  wrong "quiet = $value" kvq-eval perplexity --model "$model" --text "$evaluation_text"
done
for value in 99 -1 1.5; do wrong "verbose = $value" kvq-threshold --calib "$calib" -o x.h5; done
printf 'verbose = 2\noutliers = 0.01\nforce = false\n' >good.toml
runs kvq-threshold --config good.toml --calib "$calib" -o x.h5

# Text is no number; a size is both.
wrong 'samples = "6"' kvq-fisher --model "$model" --text "$calibration_text" -o x.h5
wrong 'outliers = "0.01"' kvq-threshold --calib "$calib" -o x.h5
wrong 'outliers = [0, "0.01"]' kvq-threshold --calib "$calib" -o x.h5
wrong 'lengths = [900, "1100"]' kvq-eval passkey --model "$model"
printf 'shape = "2,2,8"\nlengths = [1024]\nmemory = ["80GB", 1000000]\n' >good.toml
runs kvq-eval plan --recipe int4 --config good.toml

# A value that is wrong for another reason is named with file and line, unless the command line gave it.
placed() {  # placed LINE TEXT COMMAND...: of bad.toml
  refused "$2" "${@:3}" --config bad.toml
  grep -qF -- ": --config bad.toml, line $1: $2" "$err" || problem "no place: $(cat "$err")"
}
printf '# a comment\nthreads = 0\n' >bad.toml
placed 2 "--threads: '0' is not a whole number" kvq-threshold --calib "$calib" -o x.h5
printf 'quiet = true\ndtype = "fp33"\n' >bad.toml
placed 2 "--dtype" kvq-eval passkey --model "$model"
printf '[passkey]\nquiet = true\nlengths = [900,\n 900]\n' >bad.toml
placed 3 "--lengths: 900 is given twice" kvq-eval passkey --model "$model"
printf '\nlengths = 30\n' >bad.toml
placed 2 "--lengths 30: the shortest passkey prompt" kvq-eval passkey --model "$model"
refused "kvq-eval: --lengths 31: " kvq-eval passkey --model "$model" --config bad.toml --lengths 31
printf '\nonly-layers = "77"\n' >bad.toml
placed 2 "--only-layers 77: " kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --quantizer "$quantizer"
mkfifo pipe
printf 'text = ["pipe"]\n' >bad.toml
placed 1 "--text 'pipe' is not a regular file" kvq-fisher --model "$model" -o x.h5
printf 'output = "no/such/folder/"\n' >bad.toml
placed 1 "-o no/such/folder/" kvq-fit --calib "$calib" --recipe int4

# A number is no name of a file; a name ends where its string does.
for value in 3 1.5; do wrong "log-file = $value" kvq-threshold --calib "$calib" -o y.h5; done
echo "output = \"y.h5\\u0000z\"" >bad.toml
refused "line 1: 'output' holds a NUL character" kvq-threshold --config bad.toml --calib "$calib"
[[ ! -e 3 && ! -e y.h5 ]] || problem "something was left"
