# shellcheck shell=bash disable=SC2034  # variables for the cases
# What every case may use; README.md says what it is. Sourced by run_case.py's bash.

tiny=$SOURCE/tests/data/tiny
model=$tiny/mha-tied/model.gguf
calib=$FIXTURE/calib.h5
thresholds=$FIXTURE/thresholds.h5
quantizer=$FIXTURE/quantizers/nuq3-1pct.h5
other_quantizer=$FIXTURE/other.h5
calibration_text=$FIXTURE/calibration.txt
evaluation_text=$FIXTURE/evaluation.txt
out=$OUTPUTS/out err=$OUTPUTS/err

problem() {
  echo "FAILED: $*"
  echo "  stdout: $(head -c 2000 "$out" 2>/dev/null)"
  echo "  stderr: $(head -c 2000 "$err" 2>/dev/null)"
  exit 99
}

skip() {
  echo "kvq test skipped: $*"
  exit 0
}

# Names, kinds, link targets and contents of everything in the working folder.
state() {
  find . -mindepth 1 -printf '%y %p %l\n' | sort
  find . -type f -exec cksum {} + | sort
}

# code_of COMMAND...: runs it and sets `code`
code_of() {
  code=0
  "$@" >"$out" 2>"$err" || code=$?
}

runs() {
  code_of "$@"
  ((code == 0)) || problem "exit code $code of: $*"
}

# fails CODE TEXT COMMAND...
fails() {
  local expected=$1 text=$2
  shift 2
  code_of "$@"
  ((code == expected)) || problem "exit code $code, not $expected, of: $*"
  grep -qF -- "$text" "$err" || problem "no '$text' on stderr of: $*"
  [[ ! -s $out ]] || problem "something on stdout of: $*"
}

# refused TEXT COMMAND...: one message (and perhaps a pointer to --help), nothing else, nothing left behind
refused() {
  local before messages
  before=$(state)
  fails 2 "$@"
  messages=$(grep -cv -e "^Try '" "$err")
  ((messages == 1)) || problem "$messages lines of messages, not one, of: ${*:2}"
  grep -q "^kvq-[a-z]*: " "$err" || problem "the message does not begin with the tool's name: ${*:2}"
  [[ $(state) == "$before" ]] || problem "files were left or changed by: ${*:2}: $(diff <(echo "$before") <(state))"
}

same_bytes() { cmp "$1" "$2" || problem "$1 and $2 differ"; }

is_json() { python3 -m json.tool "$1" >/dev/null || problem "$1 is not JSON"; }

# json FILE EXPRESSION: value of a Python expression over `report`
json() { python3 -c 'import json, sys; report = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }

# some_text WORDS SEED: sentences of a small vocabulary, the same on every machine
some_text() {
  awk -v count="$1" -v state="$2" 'BEGIN {
    words = split("the a river stone grows under light slowly every morning birds cross old bridge while rain falls on quiet " \
                  "green hills and small towns where people read write sing count 12 305 7 red blue clouds", word, " ")
    for (n = 1; n <= count; ++n) {
      state = (state * 1103515245 + 12345) % 2147483648
      printf "%s%s", word[int(state / 65536) % words + 1], n % 11 == 0 ? ".\n" : " "
    }
  }'
}

# python_with_h5py: sets `python`, or skips. The distribution's h5py belongs to the distribution's Python.
python_with_h5py() {
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import h5py' 2>/dev/null; then return; fi
  done
  skip "no Python with h5py"
}

# can_mount: may this user mount a tmpfs in a mount namespace of its own?
can_mount() {
  mkdir -p probe
  local ok=0
  unshare --mount sh -c 'mount -t tmpfs none probe' 2>/dev/null || ok=1
  rmdir probe
  return $ok
}
