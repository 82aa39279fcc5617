# shellcheck shell=bash disable=SC1090,SC1091,SC2034,SC2154  # the parts share variables
# libtorch out of the PyPI wheel: shared libraries and headers only, no Python. Sourced, never run.

torch_home=$deps/torch-$torch_version
# The CPU part, and what a CUDA plugin opens at run time; not the Python bindings.
torch_libraries=(libc10 libtorch libtorch_cpu libtorch_global_deps
  libc10_cuda libtorch_cuda libtorch_cuda_linalg libtorch_nvshmem libcaffe2_nvrtc)

torch_is_complete() {
  local stamp=$torch_home/.complete tree=$torch_home/torch name
  for name in "${torch_libraries[@]}"; do
    [[ -f $tree/lib/$name.so ]] || return 1
  done
  [[ -f $tree/lib/libgomp.so.1 && -d $tree/include ]] || return 1
  [[ ! -f $stamp || $(<"$stamp") != "$torch_wheel_sha256" ]] || return 0
  # No stamp: unpacked by hand or by pip. Look inside once and remember.
  [[ $(sha256_of "$tree/lib/libtorch_cpu.so") == "$torch_cpu_sha256" ]] || return 1
  [[ $(sha256_of "$tree/lib/libc10.so") == "$torch_c10_sha256" ]] || return 1
  [[ $(cd "$tree/include" && find . -type f | LC_ALL=C sort | sha256_of) == "$torch_headers_sha256" ]] || return 1
  echo "$torch_wheel_sha256" >"$stamp"
}

fetch_torch() {
  torch_is_complete && return
  require_space "$deps" 2300 "libtorch (a wheel of 531 MB, 1 GB unpacked)"
  local scratch wheel name members=('torch/include/*' 'torch/lib/libgomp.so.1' '*.dist-info/licenses/*')
  scratch=$(scratch_folder)
  # Any Python tag will do, since no Python code of it is used; a fixed one gives the same archive everywhere.
  wheel=$(fetch_wheel torch "$torch_version" "$torch_wheel_sha256" "$scratch" \
    --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64)
  for name in "${torch_libraries[@]}"; do members+=("torch/lib/$name.so"); done
  say "unpacking libtorch into $torch_home"
  unzip -q "$wheel" "${members[@]}" -d "$scratch/tree" || die "$wheel could not be unpacked"
  echo "$torch_wheel_sha256" >"$scratch/tree/.complete"
  replace_folder "$scratch/tree" "$torch_home"
  rm -rf "$scratch"
}

# has_library NAME: in torch's own folder, or known to the system's loader
has_library() {
  [[ -f $torch_home/torch/lib/$1 ]] && return
  # Read to its end: with pipefail, a grep that stops early would make ldconfig fail.
  local known
  known=$(/sbin/ldconfig -p)
  [[ $known == *"$1 ("*x86-64* ]]
}

# add_cuda_library NAME PACKAGE VERSION SHA256: one library out of a wheel, beside libtorch_cpu.so, whose RPATH looks there
add_cuda_library() {
  local library=$1 scratch wheel
  has_library "$library" && return
  scratch=$(scratch_folder)
  wheel=$(fetch_wheel "$2" "$3" "$4" "$scratch" --python-version 3.11 \
    --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64)
  unzip -q -j "$wheel" "nvidia/cu13/lib/$library" -d "$scratch/tree" || die "$wheel holds no $library"
  mv "$scratch/tree/$library" "$torch_home/torch/lib/$library"
  rm -rf "$scratch"
}

ensure_torch() {
  fetch_torch
  add_cuda_library libcudart.so.13 nvidia-cuda-runtime "$cudart_version" "$cudart_wheel_sha256"
  add_cuda_library libcupti.so.13 nvidia-cuda-cupti "$cupti_version" "$cupti_wheel_sha256"
}
