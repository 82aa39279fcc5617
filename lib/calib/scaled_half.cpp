#include <kvq/calib/scaled_half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

constexpr std::int64_t kGrain = 1 << 18;

float largest_magnitude(std::span<const float> values, const std::string& name, int threads) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<float> largest(static_cast<std::size_t>((count + kGrain - 1) / kGrain), 0.0f);
  parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
    float most = 0.0f;
    bool finite = true;
    for (std::int64_t index = begin; index < end; ++index) {
      const float magnitude = std::abs(values[index]);
      finite &= magnitude <= std::numeric_limits<float>::max();  // false for NaN too
      most = std::max(most, magnitude);
    }
    if (!finite) {
      const auto bad =
          std::find_if(values.begin() + begin, values.end(), [](float value) { return !std::isfinite(value); });
      fail(ErrorKind::Numeric, fmt::format("{}: {} at index {}", name, *bad, bad - values.begin()));
    }
    largest[begin / kGrain] = most;
  });
  return largest.empty() ? 0.0f : *std::max_element(largest.begin(), largest.end());
}

}  // namespace

ScaledHalf to_scaled_half(std::span<const float> values, const std::string& name, int threads) {
  ScaledHalf result;
  if (const float largest = largest_magnitude(values, name, threads); largest > 0.0f) {
    int exponent = 0;
    std::frexp(largest, &exponent);  // largest in [2^(exponent - 1), 2^exponent)
    result.scale = std::ldexp(1.0f, std::clamp(exponent - 15, -120, 120));
  }
  const float inverse = 1.0f / result.scale;  // exact: a power of two
  result.values.resize(values.size());
  parallel_ranges(static_cast<std::int64_t>(values.size()), kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index)
      result.values[index] = float_to_half(values[index] * inverse);
  });
  return result;
}

}  // namespace kvq
