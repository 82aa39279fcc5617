#include <kvq/cuda/device_array.h>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

void check_cuda(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::Memory : ErrorKind::Device;
  fail(kind, fmt::format("CUDA, {}: {}", what, cudaGetErrorString(status)));
}

}  // namespace kvq
