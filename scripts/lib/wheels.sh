# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# Fetching archives through pip, by name, version and sha256. Sourced, never run.

# fetch_wheel NAME VERSION SHA256 FOLDER [pip options]: puts one wheel into FOLDER (which holds nothing else) and prints
# its path. pip itself refuses an archive with another sha256.
fetch_wheel() {
  local name=$1 version=$2 sha256=$3 folder=$4
  shift 4
  say "fetching $name $version"
  printf '%s==%s --hash=sha256:%s\n' "$name" "$version" "$sha256" >"$folder/requirements"
  # A user's setting that forbids pip outside a virtual environment is about installing; nothing is installed here.
  PIP_REQUIRE_VIRTUALENV=0 "$python" -m pip --disable-pip-version-check download --no-cache-dir --no-deps \
    --only-binary=:all: --require-hashes "$@" --dest "$folder" --requirement "$folder/requirements" >&2 ||
    die "$name $version could not be fetched (network down, or an archive whose sha256 is not $sha256)"
  rm "$folder/requirements"
  local wheels=("$folder"/*.whl)
  [[ ${#wheels[@]} == 1 && -f ${wheels[0]} ]] || die "pip left ${#wheels[@]} files for $name $version, not one wheel"
  echo "${wheels[0]}"
}

# A scratch folder beside its final place, so that the last step is a rename. Leftovers of killed runs go first: the
# set-up lock is held, so nobody is using them.
scratch_folder() {
  rm -rf "$deps"/scratch.*
  mktemp -d "$deps/scratch.XXXXXX"
}

# replace_folder NEW FINAL: puts NEW in the place of FINAL, which may exist.
replace_folder() {
  local new=$1 final=$2
  rm -rf "$final.old"
  [[ ! -e $final ]] || mv "$final" "$final.old"
  mv "$new" "$final"
  rm -rf "$final.old"
}
