#pragma once
// Whether work on a tensor is done by the loops written by hand for the CPU, which read its memory, or by libtorch's
// operations, which know every device. Each of those loops asks here, and nowhere else.

#include <ATen/core/Tensor.h>

namespace kvq {

bool takes_cpu_loops(const at::Tensor& x);

/// While one exists, tensors on the CPU take libtorch's operations too: how tests get there without another device.
/// For all threads, as backward passes have their own.
class WithoutCpuLoops {
 public:
  WithoutCpuLoops();
  ~WithoutCpuLoops();
  WithoutCpuLoops(const WithoutCpuLoops&) = delete;
  WithoutCpuLoops& operator=(const WithoutCpuLoops&) = delete;
};

}  // namespace kvq
