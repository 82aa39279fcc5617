# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# One text of the user's into a part to calibrate on and a part to judge with. Sourced, never run.

# split_text FILE FIRST SECOND: FIRST gets about the first 80 %, SECOND the rest. The cut is at the end of a line, so no
# character, JSONL record or word is torn and no byte is in both.
split_text() {
  local file=$1 first=$2 second=$3 size near cut
  size=$(stat -L -c %s "$file")
  near=$((size * 8 / 10))
  # Bytes from there to the end of that line. awk reads one record; tail may then die of SIGPIPE, which is no error here.
  cut=$(set +o pipefail; tail -c "+$((near + 1))" <"$file" | head -n 1 | wc -c)
  cut=$((near + cut))
  ((cut < size)) ||
    usage_error "--text '$file': no line ends between 80 % of it and its end, so it cannot be split; give --eval-text too"
  head -c "$cut" <"$file" >"$first.part"
  tail -c "+$((cut + 1))" <"$file" >"$second.part"
  # Files that did not change keep their time, by which large ones are recognised.
  local part
  for part in "$first" "$second"; do
    if cmp -s "$part.part" "$part"; then rm "$part.part"; else mv "$part.part" "$part"; fi
  done
}
