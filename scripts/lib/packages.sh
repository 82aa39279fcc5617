# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# What the distribution has to provide. Sourced, never run.

# To build and to fetch. Kept apart from the second list so that a user installs no more than the tools need.
build_packages=(
  g++ cmake ninja-build ccache                            # tools
  libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libtomlplusplus-dev
  libhdf5-dev libpcre2-dev libutf8proc-dev libssl-dev zlib1g-dev
  ca-certificates python3 python3-pip unzip                           # fetching wheels and taking files out of them
)
# The test framework, and what the tests compare with.
test_packages=(catch2 python3-numpy python3-h5py hdf5-tools)

known_systems="Debian 12, Ubuntu 22.04 and Ubuntu 24.04"  # README.md says which were tried

check_system() {
  [[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] ||
    die "this is $(uname -s) on $(uname -m); the libtorch wheel is for Linux on x86_64"
  [[ -n $(command -v dpkg-query) && -n $(command -v apt-get) ]] ||
    die "no apt-get and dpkg here: this script knows $known_systems; CONTRIBUTING.md says how to build by hand"
  local id="" version=""
  [[ -r /etc/os-release ]] && id=$(. /etc/os-release && echo "${ID:-}") && version=$(. /etc/os-release && echo "${VERSION_ID:-}")
  case "$id-$version" in
    debian-12 | ubuntu-22.04 | ubuntu-24.04) ;;
    *) say "warning: written for $known_systems; this is ${id:-unknown} ${version:-}; going on" ;;
  esac
}

# missing_packages NAME...: those that dpkg does not list as installed, one a line
missing_packages() {
  local name
  for name in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null) == ii* ]] || echo "$name"
  done
}

# install_packages NAME...: says what is missing and installs it. Touches no network when nothing is missing.
install_packages() {
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then
    return
  fi
  local command="apt-get install --yes --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "packages are missing and there is no sudo; as root: $command"
    as_root=(sudo)
    command="sudo $command"
  fi
  say "installing with: $command"
  # One unreachable third-party source must not stop us: what counts is whether the packages can be had.
  "${as_root[@]}" apt-get update >&2 || say "warning: apt-get update reported errors; trying to install all the same"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install: ${missing[*]}"
}
