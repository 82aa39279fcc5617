#pragma once
// The largest magnitude of floats, by their bit patterns, which the compiler compares many at a time.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace kvq {

/// Pattern of the largest |x|, 0 of none. Patterns of magnitudes are ordered as the magnitudes are; from kNotFinite on
/// they are those of infinity and NaN.
inline std::int32_t largest_magnitude_bits(std::span<const float> x) {
  std::int32_t largest = 0;
  for (const float value : x) largest = std::max(largest, std::bit_cast<std::int32_t>(value) & 0x7fffffff);
  return largest;
}
inline constexpr std::int32_t kNotFinite = 0x7f800000;

/// Of finite numbers.
inline float largest_magnitude(std::span<const float> x) { return std::bit_cast<float>(largest_magnitude_bits(x)); }

}  // namespace kvq
