#pragma once
// The first NaN or Inf stops a run, with its place.

#include <string>

#include <ATen/core/Tensor.h>

namespace kvq {

/// Throws Numeric when a tensor of floats holds NaN or Inf: "layer 3: key of token 17, head 2, channel 5 is nan".
/// The first dimension is tokens, which start at `first_position`; the last is channels; one between them is heads.
void check_finite(const at::Tensor& tensor, const std::string& where, const char* what,
                  std::int64_t first_position = 0);

}  // namespace kvq
