#pragma once
// Whether models can be computed on a GPU here.

#include <exception>
#include <string>

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

}  // namespace kvq::test
