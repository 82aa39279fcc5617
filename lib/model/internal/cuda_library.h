#pragma once
// What device.h opens.

namespace kvq {

/// Throws Device naming what is missing: the driver, a GPU, libtorch's CUDA part, a library that this needs.
void open_cuda_library();

}  // namespace kvq
