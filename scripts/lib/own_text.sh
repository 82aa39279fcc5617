# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# The user's own texts: what is wrong with one is said before anything is installed or built; and one text into a part to
# calibrate on and a part to judge with. Sourced, never run.

# check_text OPTION FILE: is it text? The tools check again, and name the line of a JSONL record.
check_text() {
  local option=$1 file=$2 problem
  [[ -s $file ]] || usage_error "$option '$file': is empty"
  problem=$(LC_ALL=C iconv -f UTF-8 -t UTF-8 <"$file" 2>&1 >/dev/null) ||
    usage_error "$option '$file': is not UTF-8 (${problem#iconv: })"
  local zeros
  zeros=$(set +o pipefail; LC_ALL=C tr -dc '\000' <"$file" | head -c 1 | wc -c)
  ((zeros == 0)) || usage_error "$option '$file': holds a NUL byte, so it is no text"
}

# check_length OPTION FILE BYTES COUNT SEQLEN: no tokenizer makes more tokens than there are bytes. A chat template may add
# some, so JSONL is left to the tools.
check_length() {
  local option=$1 file=$2 bytes=$3 count=$4 seqlen=$5
  [[ $file != *.jsonl && $file != *.ndjson ]] || return 0
  ((bytes >= count * (seqlen - 1))) ||
    usage_error "$option '$file': $bytes bytes cannot hold $count x $seqlen tokens; give more text, or a smaller --seqlen or --samples"
}

# check_own_texts TEXT EVAL_TEXT SAMPLES SEQLEN: either text may be ""
check_own_texts() {
  local text=$1 eval_text=$2 samples=$3 seqlen=$4 size cut
  if [[ -n $text ]]; then
    check_text --text "$text"
    size=$(stat -L -c %s "$text")
    cut=$size
    if [[ -z $eval_text ]]; then
      cut=$(split_point "$text")
      check_length --text "$text" $((size - cut)) 1 "$seqlen"
    fi
    check_length --text "$text" "$cut" "$samples" "$seqlen"
  fi
  if [[ -n $eval_text ]]; then
    check_text --eval-text "$eval_text"
    check_length --eval-text "$eval_text" "$(stat -L -c %s "$eval_text")" 1 "$seqlen"
  fi
  if [[ -n $text && -n $eval_text ]]; then require_different "$text" "$eval_text"; fi
}

# require_different CALIBRATION EVALUATION
require_different() {
  ! cmp -s "$1" "$2" ||
    usage_error "calibration and evaluation text are the same: a quantizer is not judged on what it was made from"
}

# split_point FILE: bytes of the first part: about 80 %, up to the end of a line, so that no character, JSONL record or word
# is torn
split_point() {
  local file=$1 size near cut
  size=$(stat -L -c %s "$file")
  near=$((size * 8 / 10))
  # Bytes from there to the end of that line. head reads one line; tail may then die of SIGPIPE, which is no error here.
  cut=$(set +o pipefail; tail -c "+$((near + 1))" <"$file" | head -n 1 | wc -c)
  cut=$((near + cut))
  ((cut < size)) ||
    usage_error "--text '$file': no line ends between 80 % of it and its end, so it cannot be split; give --eval-text too"
  echo "$cut"
}

# split_text FILE FIRST SECOND: FIRST gets the bytes before the split point, SECOND the rest.
split_text() {
  local file=$1 first=$2 second=$3 cut
  cut=$(split_point "$file")
  head -c "$cut" <"$file" >"$first.part"
  tail -c "+$((cut + 1))" <"$file" >"$second.part"
  # Files that did not change keep their time, by which large ones are recognised.
  local part
  for part in "$first" "$second"; do
    if cmp -s "$part.part" "$part"; then rm "$part.part"; else mv "$part.part" "$part"; fi
  done
}
