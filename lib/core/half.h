#pragma once
// IEEE half and bfloat16 <-> float, round to nearest even. Plain bit code: the same on every compiler and CPU, which
// the byte-identical artifacts and caches need.

#include <bit>
#include <cstdint>

namespace kvq {

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  // Shift exponent and mantissa into place, then rescale by 2^112: subnormals come out right without a branch.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special =
      magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(sign | special);
}

/// Values beyond 65504 (after rounding) become infinity; callers that cannot bear that check first.
inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal, let the FPU round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}

inline float bfloat16_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline constexpr float kHalfMax = 65504.0f;

}  // namespace kvq
