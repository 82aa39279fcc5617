#pragma once
// fp32 tensors as fp16 with one power of two per tensor, chosen so that the largest value lands just below 2^15: small
// gradients (1e-9 and less) survive, and nothing overflows.

#include <cstdint>
#include <span>
#include <string>

#include <kvq/artifacts/calibration_file.h>

namespace kvq {

/// `name` is for messages. Throws Numeric when a value is NaN or Inf (gives the index).
ScaledHalf to_scaled_half(std::span<const float> values, const std::string& name, int threads);

}  // namespace kvq
