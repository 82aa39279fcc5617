# scripts/quickstart looks at the user's texts before it installs, fetches or builds anything.
quickstart=("$SOURCE/scripts/quickstart" --samples 2 --seqlen 64)
bad() { local text=$1; shift; fails 2 "$text" env KVQ_DEPS_DIR="$PWD/deps" KVQ_QUICKSTART_DIR="$PWD/work" "${quickstart[@]}" "$@"; }
some_text 2000 1 >good.txt
: >empty.txt
printf 'good so far \xff\xfe\n' >invalid.txt
printf 'zero \0 inside\n' >nul.txt
some_text 10 1 >short.txt
tr '\n' ' ' <good.txt >"one line.txt"

for option in --text --eval-text; do
  bad "$option '$PWD/empty.txt': is empty" $option empty.txt
  bad "$option '$PWD/invalid.txt': is not UTF-8" $option invalid.txt
  bad "position 12" $option invalid.txt
  bad "$option '$PWD/nul.txt': holds a NUL byte" $option nul.txt
done
bad "--text '$PWD/short.txt'" --text short.txt
bad "bytes cannot hold 1 x 64 tokens" --eval-text short.txt
bad "bytes cannot hold 2000 x 64 tokens" --text good.txt --samples 2000
bad "cannot be split" --text "one line.txt"
bad "are the same" --text good.txt --eval-text good.txt
[[ ! -e deps && ! -e work ]] || problem "something was set up for a text that is refused"

# What is fine passes, also where a JSONL record is shorter than a window: its template may add tokens.
accepted() { runs bash -euo pipefail -c 'program=test; . "$SOURCE/scripts/lib/common.sh"; . "$SOURCE/scripts/lib/own_text.sh"; check_own_texts "$@"' - "$@"; }
for letter in a b c d e f g h i j; do echo "{\"text\": \"$letter\"}"; done >lines.jsonl
some_text 500 2 >other.txt
accepted good.txt "" 2 64
accepted "one line.txt" other.txt 2 64
accepted lines.jsonl "" 2 64
accepted "" other.txt 2 64
