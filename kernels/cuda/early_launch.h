#pragma once
// Launches a kernel that may be set up while the one before it in the stream still runs; it waits for that one's results
// itself (wait_for_kernel_before()).

#include <cuda_runtime_api.h>

#include <kvq/kernels/cuda/decode_attention.h>

namespace kvq::cuda {

template <typename Parameters>
Status launch_early(void (*kernel)(Parameters), dim3 grid, int threads, int shared_bytes, Stream stream,
                    const Parameters& parameters) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = grid;
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&launch, kernel, parameters) == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace kvq::cuda
