#include <kvq/fit/kmeans1d.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <tuple>

#include <kvq/core/error.h>
#include <kvq/fit/cells.h>
#include <kvq/fit/lloyd.h>
#include <kvq/fit/partition.h>

namespace kvq {

namespace {

// Up to here sorting is as cheap as a histogram.
constexpr std::int64_t kSortUpTo = 1 << 15;
constexpr int kLloydRounds = 2000;
// Each round of resolving reads the data once; the first nearly always suffices.
constexpr int kResolveRounds = 8;
// The histogram is trusted when what its bins hide is this small a part of the error found with it.
constexpr double kHiddenShare = 1e-3;

/// At least 256 per cluster for 2-4 bits, 64 beyond; no more than that, for the sums have to stay in the cache.
int histogram_bins(int clusters) { return clusters <= 16 ? 1 << 12 : 1 << 14; }

/// Cells for the dynamic program. 512 per cluster make the choice among nearly equal optima right to about 1e-6 of the
/// error; many clusters get fewer, as there only the start of the polish is at stake and the program's time grows with
/// the product.
int partition_cells(int clusters) { return clusters <= 16 ? std::max(512 * clusters, 2048) : 4096; }

/// All distinct values become centroids; the spare ones halve, third, … the widest gaps.
std::vector<double> spread_spares(std::span<const Moments> cells, int clusters) {
  std::vector<double> result;
  for (const Moments& cell : cells) result.push_back(cell.mean);
  int spare = clusters - static_cast<int>(result.size());
  if (cells.size() == 1) {
    const double step = std::max(std::abs(result[0]), 1.0) / clusters;
    for (int i = 1; i <= spare; ++i) result.push_back(cells[0].mean + i * step);
    return result;
  }
  std::vector<int> parts(cells.size() - 1, 1);
  std::priority_queue<std::tuple<double, int>> widest;  // width of a part, -index of the gap: ties to the lower gap
  const auto width = [&](int gap) { return (cells[gap + 1].mean - cells[gap].mean) / parts[gap]; };
  for (int gap = 0; gap < static_cast<int>(parts.size()); ++gap) widest.emplace(width(gap), -gap);
  for (; spare > 0; --spare) {
    const int gap = -std::get<1>(widest.top());
    widest.pop();
    ++parts[gap];
    widest.emplace(width(gap), -gap);
  }
  for (int gap = 0; gap < static_cast<int>(parts.size()); ++gap)
    for (int part = 1; part < parts[gap]; ++part) result.push_back(cells[gap].mean + part * width(gap));
  std::sort(result.begin(), result.end());
  return result;
}

double total_weight(std::span<const Moments> cells) {
  double sum = 0;
  for (const Moments& cell : cells) sum += cell.weight;
  return sum;
}

double hidden_error(std::span<const Moments> cells) {
  double sum = 0;
  for (const Moments& cell : cells) sum += cell.spread;
  return sum;
}

}  // namespace

KMeans1dResult kmeans1d(std::span<const float> values, std::span<const float> weights, int clusters, int threads) {
  KVQ_ASSERT(clusters >= 1);
  KVQ_ASSERT(weights.empty() || weights.size() == values.size());
  KMeans1dResult result;
  if (values.empty()) {
    result.centroids.assign(clusters, 0.0);
    return result;
  }
  const WeightedRange range = weighted_range(values, weights, threads);
  if (range.count == 0) return kmeans1d(values, {}, clusters, threads);
  const int limit = partition_cells(clusters);
  const bool sort_first = range.count <= kSortUpTo || range.minimum == range.maximum;
  CellTable table = sort_first ? CellTable::sorted(values, weights)
                               : CellTable::histogram(values, weights, range, histogram_bins(clusters), threads);
  const auto solve = [&] {
    if (static_cast<std::size_t>(clusters) > table.cells().size()) return Partition{};
    return optimal_partition(group_cells(table.cells(), limit), clusters);
  };
  Partition partition = solve();
  // A far outlier, or values that repeat, can put what matters into a few bins.
  const bool too_few = static_cast<std::size_t>(clusters) >= table.cells().size();
  if (!sort_first && (too_few || !(hidden_error(table.cells()) <= kHiddenShare * partition.error))) {
    table = CellTable::sorted(values, weights);
    partition = solve();
  }
  result.weight = total_weight(table.cells());
  if (static_cast<std::size_t>(clusters) >= table.cells().size()) {
    result.centroids = spread_spares(table.cells(), clusters);
    return result;
  }
  result.centroids = std::move(partition.centroids);
  lloyd(table.cells(), result.centroids, kLloydRounds);
  for (int round = 0; round < kResolveRounds && table.resolve(midpoints(result.centroids), 1, threads); ++round)
    lloyd(table.cells(), result.centroids, kLloydRounds);
  table.resolve(midpoints(result.centroids), 0, threads);  // so that the error is that of these very centroids
  result.error = clustering_error(table.cells(), result.centroids);
  return result;
}

}  // namespace kvq
