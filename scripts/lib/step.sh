# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# Steps of a pipeline that are done once per set of inputs. Sourced, never run.

# identity FILE: what tells whether a file changed. Content where that is cheap; of files of gigabytes, what rsync looks at.
identity() {
  if (($(stat -L -c %s "$1") <= 64 * 1024 * 1024)); then
    sha256_of <"$1"
  else
    stat -L -c '%s bytes, inode %i, changed %Y' "$1"
  fi
}

# inputs_of RESULT COMMAND...: a digest of the program, our library, and every argument; where an argument names a file or
# a folder, of what is in it too, RESULT apart. Anything that could change a result changes the digest.
inputs_of() {
  local result=$1 argument
  shift
  {
    for argument in "$build"/lib/libkvq.so "$@"; do
      printf '%s\n' "$argument"
      if [[ $argument == "$result" ]]; then
        continue
      elif [[ -f $argument ]]; then
        identity "$argument"
      elif [[ -d $argument ]]; then
        find -L "$argument" -type f -printf '%P %s %T@\n' | LC_ALL=C sort
      fi
    done
  } | sha256_of
}

# step NAME RESULT RESUMES TITLE COMMAND...: runs COMMAND, which writes RESULT (a file or folder inside $work/NAME),
# unless it already ran to its end with the same inputs. Its standard output is kept in $work/NAME.stdout.
# RESUMES (yes|no): after a run that was broken off, start again with what it left, or without.
step() {
  local name=$1 result=$2 resumes=$3 title=$4
  shift 4
  local state=$work/$name.inputs digest
  digest=$(inputs_of "$result" "$@")
  if [[ -f $state && $(<"$state") == "$digest done" && -e $result ]]; then
    say "$title: done before, inputs unchanged"
    return
  fi
  if [[ $resumes == no || ! -f $state || $(<"$state") != "$digest started" || -e $result ]]; then
    rm -rf "${work:?}/$name" "$work/$name.stdout"
  fi
  mkdir -p "$work/$name"
  echo "$digest started" >"$state"
  say "$title"
  local began=$SECONDS
  "$@" >"$work/$name.stdout.part" || return
  mv "$work/$name.stdout.part" "$work/$name.stdout"
  echo "$digest done" >"$state"
  say "$title: took $((SECONDS - began)) s"
}
