# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# Set-up and build, shared by quickstart and test. Sourced, never run.

for part in pins packages wheels torch model texts; do
  . "$root/scripts/lib/$part.sh"
done

tools=(kvq-fisher kvq-threshold kvq-fit kvq-eval)

# configure PRESET [CMAKE OPTION...]: always run, since CMake is quick when nothing changed and a stale cache is not worth the doubt
configure() {
  local preset=$1
  local settings=("${@:2}")
  # The preset names the folder inside the clone; only a shared one (KVQ_DEPS_DIR) has to be passed on.
  [[ $deps == "$root/build/deps" ]] || settings+=("-DKVQ_TORCH_DIR=$torch_home/torch")
  if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
    export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS-pch_defines,time_macros}  # else it does not keep what uses precompiled headers
  fi
  say "configuring build/$preset"
  (cd "$root" && cmake --preset "$preset" "${settings[@]}") >&2
}

# build PRESET JOBS [TARGET...]: all targets when none is named
build() {
  local preset=$1 jobs=$2
  shift 2
  say "building build/$preset with $(some "$jobs" job)"
  (cd "$root" && cmake --build --preset "$preset" --parallel "$jobs" ${1+--target "$@"}) >&2
}

# Parallel compilers: one a core, but none without about 1.5 GB of memory for it.
build_jobs() {
  local cores by_memory
  cores=$(cpu_count)
  by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
  ((by_memory >= 1)) || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}
