#include <kvq/stats/quantile.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <kvq/core/error.h>

namespace kvq {

float quantile(std::span<float> values, double q) {
  KVQ_ASSERT(!values.empty() && q >= 0.0 && q <= 1.0);
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(position), values.size() - 1);
  const double fraction = position - static_cast<double>(below);
  const auto split = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), split, values.end());
  const double low = *split;
  if (fraction == 0.0 || below + 1 == values.size()) return static_cast<float>(low);
  const double high = *std::min_element(split + 1, values.end());
  // numpy interpolates from the nearer end, so that the result never leaves [low, high].
  const double result = fraction < 0.5 ? low + (high - low) * fraction : high - (high - low) * (1.0 - fraction);
  return static_cast<float>(result);
}

QuantilePair quantile_pair(std::span<float> values, double tail) {
  return {quantile(values, tail), quantile(values, 1.0 - tail)};
}

}  // namespace kvq
