#include <kvq/vector/scalar_codec_fit.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr int kLevelBins = 4096;

/// Calls use(x / scale, scale) for every value of rows whose stored scale is not 0.
template <typename Use>
void for_scaled_values(std::span<const float> sample, int dim, RowScale scale, Use use) {
  const std::size_t channels = static_cast<std::size_t>(dim);
  const std::int64_t rows = check_rows(sample, dim);
  const int exponent = scale_exponent(sample, dim, scale);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto values = sample.subspan(static_cast<std::size_t>(row) * channels, channels);
    const float stored = row_scale(half_row_scale(values, scale, exponent, row), exponent);
    if (stored == 0) continue;
    const float inverse = 1.0f / stored;
    for (const float value : values) use(std::clamp(value * inverse, -1.0f, 1.0f), stored);
  }
}

/// Occupied bins from left to right, as sums of what came before each.
struct BinSums {
  std::vector<double> weight{0}, first{0}, second{0};

  int bins() const { return static_cast<int>(weight.size()) - 1; }
  /// Squared error of bins [begin, end) around their mean.
  double error(int begin, int end) const {
    const auto b = static_cast<std::size_t>(begin), e = static_cast<std::size_t>(end);
    const double w = weight[e] - weight[b], sum = first[e] - first[b];
    return std::max(0.0, second[e] - second[b] - sum * sum / w);
  }
};

/// Row `clusters` of the dynamic programme from the row before: best[end] for ends in [low, high], whose last cluster
/// begins within [from, to]. Where it begins never moves left as the end moves right.
void best_partition(const BinSums& sums, const std::vector<double>& before, int low, int high, int from, int to,
                    std::vector<double>& best, std::vector<int>& begins) {
  if (low > high) return;
  const int end = (low + high) / 2;
  double least = std::numeric_limits<double>::infinity();
  int least_begin = from;
  for (int begin = from; begin <= std::min(to, end - 1); ++begin) {
    const double error = before[static_cast<std::size_t>(begin)] + sums.error(begin, end);
    if (error < least) least = error, least_begin = begin;
  }
  best[static_cast<std::size_t>(end)] = least;
  begins[static_cast<std::size_t>(end)] = least_begin;
  best_partition(sums, before, low, end - 1, from, least_begin, best, begins);
  best_partition(sums, before, end + 1, high, least_begin, to, best, begins);
}

}  // namespace

std::vector<float> fit_scalar_levels(std::span<const float> sample, int dim, RowScale scale, int bits) {
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  std::vector<double> weight(kLevelBins, 0.0), first(kLevelBins, 0.0), second(kLevelBins, 0.0);
  for_scaled_values(sample, dim, scale, [&](float value, float stored) {
    const auto bin =
        static_cast<std::size_t>(std::min(kLevelBins - 1, static_cast<int>((value + 1.0f) * (kLevelBins / 2))));
    const double w = static_cast<double>(stored) * static_cast<double>(stored), x = static_cast<double>(value);
    weight[bin] += w, first[bin] += w * x, second[bin] += w * x * x;
  });
  BinSums sums;
  for (std::size_t bin = 0; bin < weight.size(); ++bin) {
    if (weight[bin] == 0) continue;
    sums.weight.push_back(sums.weight.back() + weight[bin]);
    sums.first.push_back(sums.first.back() + first[bin]);
    sums.second.push_back(sums.second.back() + second[bin]);
  }
  const int levels = 1 << bits, clusters = std::min(levels, sums.bins());
  if (clusters == 0) return std::vector<float>(static_cast<std::size_t>(levels), 0.0f);

  const std::size_t ends = static_cast<std::size_t>(sums.bins()) + 1;
  std::vector<double> best(ends, std::numeric_limits<double>::infinity());
  best[0] = 0;
  std::vector<std::vector<int>> begins;
  for (int cluster = 1; cluster <= clusters; ++cluster) {
    std::vector<double> next(ends, std::numeric_limits<double>::infinity());
    begins.emplace_back(ends, 0);
    best_partition(sums, best, cluster, sums.bins(), cluster - 1, sums.bins() - 1, next, begins.back());
    best = std::move(next);
  }
  std::vector<float> result;
  int end = sums.bins();
  for (int cluster = clusters; cluster-- > 0;) {
    const int begin = begins[static_cast<std::size_t>(cluster)][static_cast<std::size_t>(end)];
    const auto b = static_cast<std::size_t>(begin), e = static_cast<std::size_t>(end);
    result.push_back(static_cast<float>((sums.first[e] - sums.first[b]) / (sums.weight[e] - sums.weight[b])));
    end = begin;
  }
  std::reverse(result.begin(), result.end());
  result.resize(static_cast<std::size_t>(levels), result.back());
  std::sort(result.begin(), result.end());  // rounding of sums may swap neighbours that are equal
  return result;
}

std::vector<float> even_scalar_levels(std::span<const float> sample, int dim, RowScale scale, int bits) {
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  float reach = 0;
  for_scaled_values(sample, dim, scale, [&](float value, float) { reach = std::max(reach, std::fabs(value)); });
  const int levels = 1 << bits;
  std::vector<float> result;
  for (int level = 0; level < levels; ++level)
    result.push_back(reach * static_cast<float>(2 * level - (levels - 1)) / static_cast<float>(levels - 1));
  return result;
}

}  // namespace kvq
