#include <kvq/stats/summary.h>

#include <cmath>

#include <kvq/core/error.h>

namespace kvq {

namespace {
constexpr std::size_t kFewestClusters = 5;  // below, the estimate itself is off by a third and more
}

double mean(std::span<const double> values) {
  KVQ_ASSERT(!values.empty());
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::optional<double> standard_error(std::span<const double> clusters) {
  if (clusters.size() < kFewestClusters) return std::nullopt;
  const double centre = mean(clusters);
  double squares = 0.0;
  for (const double value : clusters) squares += (value - centre) * (value - centre);
  const auto count = static_cast<double>(clusters.size());
  return std::sqrt(squares / (count - 1.0) / count);
}

}  // namespace kvq
