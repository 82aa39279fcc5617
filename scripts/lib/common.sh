# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# Shared by the scripts: where things are, how they speak and stop. Sourced, never run.
# Callers set `set -euo pipefail` and `program` (the name in front of messages) first.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
# Fetched libraries, model and texts. KVQ_DEPS_DIR shares one copy between several clones.
deps=${KVQ_DEPS_DIR:-$root/build/deps}
[[ $deps == /* ]] || deps=$PWD/$deps
# The distribution's Python: it is the one that the installed packages (pip, numpy, h5py) belong to.
python=/usr/bin/python3

say() { printf '%s: %s\n' "$program" "$*" >&2; }
die() { say "error: $*"; exit 1; }
usage_error() { say "error: $*"; say "try '$program --help'"; exit 2; }

# some COUNT NOUN: "1 window", "3 windows"
some() { echo "$1 $2$( (($1 == 1)) || echo s)"; }

# sha256_of [FILE]: the sha256 of one file, or of standard input without arguments.
sha256_of() { sha256sum "$@" | cut -d' ' -f1; }

# Cores that this process may use.
cpu_count() { nproc; }

# require_space FOLDER MEBIBYTES WHAT: stops early instead of halfway through with a full disk.
require_space() {
  local folder=$1 needed=$2 what=$3 free
  mkdir -p "$folder"
  free=$(($(df --output=avail -k "$folder" | tail -n 1) / 1024))
  ((free >= needed)) || die "$what needs about $needed MiB under $folder, and $free MiB are free"
}

# Two set-ups at once would fetch into the same folder, two builds of a clone write into the same tree: the second waits
# for the first. Clones that share what is fetched (KVQ_DEPS_DIR) build side by side.
# lock_setup FOLDER WHAT: one at a time in a folder that WHAT changes; until unlock_setup
lock_setup() {
  mkdir -p "$1"
  exec {setup_lock}>"$1/.lock"
  if ! flock --nonblock "$setup_lock"; then
    say "another $2 is at work in $1; waiting for it"
    flock "$setup_lock"
  fi
  # What was half fetched when something failed.
  [[ $1 != "$deps" ]] || trap 'rm -rf "$deps"/scratch.*' EXIT
}
unlock_setup() {
  trap - EXIT
  exec {setup_lock}>&-
}

# The tools end with 130 when interrupted, and so do we, whichever child was running.
trap 'exit 130' INT
