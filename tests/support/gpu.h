#pragma once
// Whether models can be computed on a GPU here, and tests of what they take there that run without one as well.

#include <exception>
#include <optional>
#include <string>

#include "support/skip.h"

#include <kvq/model/cpu_loops.h>
#include <kvq/model/device.h>

namespace kvq::test {

/// Empty where they can; else why not.
inline std::string no_cuda_reason() {
  try {
    open_device(Device::Cuda);
    return "";
  } catch (const std::exception& problem) {
    return problem.what();
  }
}

/// Does `work` as it is done for the GPU: there, or for Device::Cpu with the same operations on the CPU.
template <typename Work>
auto by_operations(Device device, const Work& work) {
  std::optional<WithoutCpuLoops> without_loops;
  if (device == Device::Cpu) without_loops.emplace();
  return work();
}

}  // namespace kvq::test

/// Two tests, `check(device)` with Device::Cpu and, tagged [gpu], with Device::Cuda.
#define KVQ_TEST_OF_OPERATIONS(name, check)                                                        \
  TEST_CASE(name " (operations on the CPU)") { check(kvq::Device::Cpu); }                          \
  TEST_CASE(name " (GPU)", "[gpu]") {                                                              \
    if (const std::string reason = kvq::test::no_cuda_reason(); !reason.empty()) KVQ_SKIP(reason); \
    check(kvq::Device::Cuda);                                                                      \
  }
