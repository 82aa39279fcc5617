# Bad usage: exit 2, one message that names the flag and its value.
fisher=(kvq-fisher --model "$model" --text "$calibration_text" --seqlen 64 -o out.h5)
threshold=(kvq-threshold --calib "$calib" -o out.h5)
fit=(kvq-fit --calib "$calib" --thresholds "$thresholds" -o out.h5)
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64)
passkey=(kvq-eval passkey --model "$model")

for tool in kvq-fisher kvq-threshold kvq-fit kvq-eval "kvq-eval perplexity" "kvq-eval passkey"; do
  # shellcheck disable=SC2086  # two words
  refused required $tool
done
# Options that all tools share come from one place: each tool must have them, one is tried with everything. (A tool takes
# a third of a second to start, since libtorch is large, so a product of tools and mistakes would take minutes.)
for command in "${fisher[*]}" "${threshold[*]}" "${fit[*]} --recipe int4" "${perplexity[*]}" "${passkey[*]}"; do
  read -ra words <<<"$command"
  refused --no-such-option "${words[@]}" --no-such-option
  refused stray "${words[@]}" stray
  refused --threads "${words[@]}" --threads 0
  refused no/such/../folder/log "${words[@]}" --log-file /proc/no/such/../folder/log
done
for command in "${threshold[*]}" "${passkey[*]}"; do  # with and without a subcommand
  read -ra words <<<"$command"
  refused --threads "${words[@]}" --threads -1
  refused --threads "${words[@]}" --threads many
  refused --threads "${words[@]}" --threads
  refused --threads "${words[@]}" --threads 1 --threads 2
  refused --log-file "${words[@]}" --log-file ""
done
refused no-such-command kvq-eval no-such-command

# A misspelt option is named, not the one that is missing because of it.
refused "'--modle' is not an option of kvq-fisher" kvq-fisher --modle "$model" --text "$calibration_text" -o out.h5
refused "'--recepe' is not an option of kvq-fit" kvq-fit --calib "$calib" --recepe nf4
refused "'--quantiser' is not an option of kvq-eval perplexity" "${perplexity[@]}" --quantiser q.h5
refused "'-q.h5' is not an option of kvq-eval inspect; a file: ./-q.h5" kvq-eval inspect -q.h5
refused "--outliers holds 0.01 twice" kvq-threshold --calib "$calib" --outliers 0.01,0.02,0.01 -o t.h5
refused "--sinks holds 1 twice" kvq-threshold --calib "$calib" --outliers 0.01 --sinks 1,1 -o t.h5

# The pointer to --help is to that of the command, where one was named.
points() { refused "" "${@:2}"; grep -qxF "Try '$1 --help'." "$err" || problem "no pointer to $1: $(cat "$err")"; }
points "kvq-eval perplexity" "${perplexity[@]}" --bad
points "kvq-eval perplexity" kvq-eval perplexity --text=
points "kvq-eval passkey" "${passkey[@]}" --lengths 0
points "kvq-eval passkey" kvq-eval passkey
points kvq-eval kvq-eval --bad
points kvq-eval kvq-eval no-such-command
points kvq-fit "${fit[@]}" --bad

# What was typed is quoted, but not at any length.
long=$(printf 'x%.0s' {1..3000})
brief() { refused "${long:0:50}" "$@"; [[ $(cat "$err") != *${long:0:61}* ]] || problem "$(wc -c <"$err") bytes of message: ${*:0:4}"; }
for recipe in "$long" "nuq3:$long" "nuq3:sink=$long" "nuq3-$long%" "nuq$long" "K=nuq3/V=$long" "int4:icm=$long" "turbo3:rotation=$long" "nuq3:lo=$long" "delta3:$long" "delta3:anchor=$long"; do
  brief "${fit[@]}" --recipe "$recipe"
done
brief kvq-fit --model "$model" --weight-fisher "$calib" --weights "w4-s$long%" -o out.h5
brief "${perplexity[@]}" "--$long"
brief "${perplexity[@]}" --dtype "$long"
brief "${perplexity[@]}" --max-windows "$long"
brief "${perplexity[@]}" --quantizer "$quantizer" --only-layers "$long"
brief kvq-eval "$long"
brief kvq-eval plan --shape "$long"
printf '[key]\ncodebook = "%s"\nbits = 3\n[value]\ncodebook = "nuq"\nbits = 3\n' "$long" >long.toml
brief "${fit[@]}" --recipe long.toml
sed "s/$long/nuq/; 2a $long = 3" long.toml >key.toml
brief "${fit[@]}" --recipe key.toml
printf '%s = 1\n' "$long" >long.toml
brief kvq-eval perplexity --config long.toml
rm long.toml key.toml

# An empty value is a slip, in both spellings, and never eats the next argument.
refused --text kvq-fisher --model "$model" --text "" -o out.h5
refused --text kvq-fisher --model "$model" --text= -o out.h5
refused --model "${perplexity[0]}" perplexity --model "" --text "$evaluation_text"
refused --output "${perplexity[@]}" -o ""
refused --calib kvq-threshold --calib "" -o out.h5
refused --recipe "${fit[@]}" --recipe ""

# Numbers out of range, with the range.
refused --samples "${fisher[@]}" --samples 0
refused --samples "${fisher[@]}" --samples -3
refused "whole number from 1" "${fisher[@]}" --samples 2.5
refused "whole number from 1" "${fisher[@]}" --samples 1e9
refused --seed "${fisher[@]}" --seed -1
refused --seed "${fisher[@]}" --seed 18446744073709551616
refused --seed "${fisher[@]}" --seed abc
refused "whole number from 1 to 1024" "${threshold[@]}" --threads 1.5
refused --seqlen kvq-fisher --model "$model" --text "$calibration_text" --seqlen 1 -o out.h5
refused --seqlen kvq-fisher --model "$model" --text "$calibration_text" --seqlen 0 -o out.h5
refused --outliers "${threshold[@]}" --outliers -1e-3
refused -1e-3 "${threshold[@]}" --outliers -1e-3
refused --outliers "${threshold[@]}" --outliers=-1e-3
refused --outliers "${threshold[@]}" --outliers 1.5
refused --outliers "${threshold[@]}" --outliers nan
refused --outliers "${threshold[@]}" --outliers 0.01,much
refused --sinks "${threshold[@]}" --sinks -1
refused --seqlen kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 1
refused --max-windows "${perplexity[@]}" --max-windows 0
refused --max-kl "${perplexity[@]}" --max-kl -0.1
refused --max-kl "${perplexity[@]}" --max-kl nan
refused --lengths "${passkey[@]}" --lengths 0
refused --lengths "${passkey[@]}" --lengths 100,-5
refused --depths "${passkey[@]}" --depths 0
refused --trials "${passkey[@]}" --trials 0

# Words that are not known, with those that are.
refused fp32 "${fisher[@]}" --dtype fp16
refused window "${fisher[@]}" --bos maybe
refused layer "${fisher[@]}" --recompute never
refused packed "${perplexity[@]}" --cache gpu
refused fp32 "${perplexity[@]}" --dtype int8
refused chat "${passkey[@]}" --prompt xml
# Given twice: it would be two equal rows, or mean something else than was thought.
perplexity=(kvq-eval perplexity --model "$model" --text "$evaluation_text" --seqlen 64 --max-windows 1 --quantizer "$quantizer")
ln -s "$quantizer" link.h5
refused "is given twice" "${perplexity[@]}" --quantizer "$quantizer"
refused "--quantizer link.h5 is given twice" "${perplexity[@]}" --quantizer link.h5
for layers in 0,0 0-1,1; do refused "is given twice" "${perplexity[@]}" --only-layers $layers; done
