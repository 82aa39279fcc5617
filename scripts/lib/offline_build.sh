#!/usr/bin/env bash
# Builds kvq from an offline bundle (scripts/offline-bundle), whose top folder this file lies in. See --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
  cat <<'USAGE'
usage: kvq-offline/build --torch DIR [--model FILE] [--test] [CMake options]

Builds kvq into kvq-offline/out without a network: the tools are in kvq-offline/out/bin, run through kvq-offline/run.

  --torch DIR     the folder 'torch' of a torch 2.11 wheel (python3 -c 'import torch; print(torch.__path__[0])'), or libtorch
  --model FILE    the small model for the tests that run a real one
  --test          run the tests too
  -h, --help      this text

Exit codes: 0 done, 1 failed, 2 bad usage.
USAGE
}
bad_usage() { echo "kvq-offline: error: $*" >&2; exit 2; }

torch="" model="" run_tests=no settings=()
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --test) run_tests=yes ;;
    --torch | --model)
      (($# > 1)) || bad_usage "$1 needs a value"
      declare "${1#--}=$2"
      shift ;;
    -D*) settings+=("$1") ;;
    *) bad_usage "unknown option '$1'" ;;
  esac
  shift
done
[[ -n $torch ]] || bad_usage "--torch is needed"
[[ -f $torch/lib/libtorch_cpu.so ]] || bad_usage "--torch '$torch': holds no lib/libtorch_cpu.so"
torch=$(realpath -- "$torch")
for tool in g++ cmake ninja python3; do
  command -v "$tool" >/dev/null || { echo "kvq-offline: error: there is no $tool here" >&2; exit 1; }
done

system=$here/system
libraries=$system/usr/lib/x86_64-linux-gnu
cat >"$here/run" <<RUN
#!/usr/bin/env bash
# Runs a program of this build with the bundle's libraries.
export LD_LIBRARY_PATH="$libraries:$system/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$@"
RUN
chmod +x "$here/run"

# The bundle's files first, and no others of the same libraries.
settings+=(
  "-DCMAKE_BUILD_TYPE=Release" "-DKVQ_TORCH_DIR=$torch" "-DCMAKE_PREFIX_PATH=$system/usr"
  "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu"
  "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$libraries" "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$libraries"
  "-DHDF5_INCLUDE=$system/usr/include/hdf5/serial" "-DHDF5_LIBRARY=$libraries/libhdf5_serial.so"
  "-DOPENSSL_ROOT_DIR=$system/usr" "-DOPENSSL_CRYPTO_LIBRARY=$libraries/libcrypto.so" "-DOPENSSL_INCLUDE_DIR=$system/usr/include"
  "-DZLIB_LIBRARY=$libraries/libz.so" "-DZLIB_INCLUDE_DIR=$system/usr/include"
  "-DPCRE2_INCLUDE=$system/usr/include" "-DPCRE2_LIBRARY=$libraries/libpcre2-8.so"
  "-DUTF8PROC_INCLUDE=$system/usr/include" "-DUTF8PROC_LIBRARY=$libraries/libutf8proc.so"
)
cmake -S "$here/source" -B "$here/out" -G Ninja "${settings[@]}"
"$here/run" cmake --build "$here/out"
echo "kvq-offline: the tools are in $here/out/bin; run them as $here/run $here/out/bin/kvq-eval …" >&2
if [[ $run_tests == yes ]]; then
  [[ -z $model ]] || export KVQ_TEST_MODEL=$(realpath -- "$model")
  (cd "$here/out" && "$here/run" ctest --output-on-failure -j "$(nproc)") || exit 1
fi
