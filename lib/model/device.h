#pragma once
// Where a model is computed. libkvq links libtorch's CPU part only; the CUDA part is opened when it is asked for, here
// and nowhere else, so that one build runs with and without a GPU.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kvq {

enum class Device { Cpu, Cuda };

/// Names on the command line, in the order of Device.
const std::vector<std::string>& device_names();
Device parse_device(const std::string& word);  ///< throws Usage
const char* device_name(Device device);

/// Before the first tensor is put there. Cpu: nothing. Cuda: finds the driver, opens libtorch_cuda.so beside
/// libtorch_cpu.so, computes something, and keeps fp32 products in fp32 (no TF32) from then on; the current device is
/// the first that CUDA_VISIBLE_DEVICES leaves. Throws Device: what is missing, and what would be right. Thread-safe;
/// once is enough.
void open_device(Device device);

/// What libtorch calls it.
c10::Device torch_device(Device device);

/// Bytes that can still be allocated there: available_memory_bytes() of the CPU (memory.h); of an opened GPU what is
/// free, with what this process keeps for reuse.
std::int64_t available_memory_bytes(Device device);

/// Detached, fp32, contiguous, on the CPU: x itself where it is all of that.
at::Tensor host_floats(const at::Tensor& x);

}  // namespace kvq
