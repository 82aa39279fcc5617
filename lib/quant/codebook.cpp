#include <kvq/quant/codebook.h>

#include <cmath>
#include <cstddef>
#include <numbers>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Inverse of the standard normal distribution function, for p in [0.5, 1). Newton's method on erfc: quadratic, and
/// from 0 it climbs monotonically because the function is concave there.
double normal_quantile(double p) {
  double x = 0.0;
  for (int step = 0; step < 100; ++step) {
    const double error = p - (1.0 - 0.5 * std::erfc(x / std::numbers::sqrt2));
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    const double next = x + error / density;
    if (std::abs(next - x) < 1e-15) return next;
    x = next;
  }
  return x;
}

/// Quantiles at `count` equally spaced probabilities from `highest` down to, and without, 0.5; ascending.
std::vector<double> positive_quantiles(double highest, int count) {
  std::vector<double> result(static_cast<std::size_t>(count));
  for (int level = 0; level < count; ++level) {
    result[static_cast<std::size_t>(count - 1 - level)] = normal_quantile(highest + (0.5 - highest) * level / count);
  }
  return result;
}

Codebook from_levels(std::vector<float> levels) { return {levels, levels}; }

}  // namespace

std::vector<float> Codebook::boundaries() const {
  std::vector<float> result;
  for (std::size_t level = 1; level < centroids.size(); ++level) {
    result.push_back(0.5f * centroids[level - 1] + 0.5f * centroids[level]);
  }
  return result;
}

Codebook uniform_levels(int levels) {
  KVQ_ASSERT(levels >= 1 && levels <= 256);
  if (levels == 1) return from_levels({0.0f});
  if (levels == 2) return from_levels({-0.5f, 0.5f});
  const int last = levels - 1;
  std::vector<float> positions;
  for (int level = 0; level <= last; ++level) positions.push_back(static_cast<float>((2.0 * level - last) / last));
  return from_levels(std::move(positions));
}

Codebook uniform_codebook(int bits) {
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  return uniform_levels(1 << bits);
}

Codebook normal_float_codebook(int bits) {
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  if (bits == 1) return uniform_codebook(1);
  // Dettmers et al., QLoRA (arXiv 2305.14314), as published: the outermost probability is the mean of the ones that
  // 2^bits and 2^bits - 1 equally likely bins would give; half of the levels above 0, one less below, and 0 itself.
  const int levels = 1 << bits;
  const double highest = 1.0 - 0.5 * (1.0 / (2.0 * levels) + 1.0 / (2.0 * (levels - 1)));
  const std::vector<double> above = positive_quantiles(highest, levels / 2);
  const std::vector<double> below = positive_quantiles(highest, levels / 2 - 1);
  const double scale = above.back();
  std::vector<float> result;
  for (auto level = below.rbegin(); level != below.rend(); ++level)
    result.push_back(static_cast<float>(-*level / scale));
  result.push_back(0.0f);
  for (const double level : above) result.push_back(static_cast<float>(level / scale));
  return from_levels(std::move(result));
}

}  // namespace kvq
