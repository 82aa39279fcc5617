#include <kvq/quant/scaled_half.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {
constexpr float kComfortableLow = 0x1p-4f, kComfortableHigh = 0x1p12f;
constexpr int kTargetBinade = 10;
constexpr int kLargestExponent = 120;
}  // namespace

int choose_exponent(float max_abs) {
  if (!std::isfinite(max_abs) || max_abs < 0.0f) {
    fail(ErrorKind::Numeric,
         fmt::format("largest magnitude of a layer is {}; it must be finite and not negative", max_abs));
  }
  if (max_abs == 0.0f || (max_abs >= kComfortableLow && max_abs <= kComfortableHigh)) return 0;
  return std::clamp(std::ilogb(max_abs) - kTargetBinade, -kLargestExponent, kLargestExponent);
}

float power_of_two(int exponent) {
  KVQ_ASSERT(exponent >= -126 && exponent <= 127);
  return std::ldexp(1.0f, exponent);
}

}  // namespace kvq
