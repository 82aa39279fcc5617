#include <kvq/fit/partition.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Greedy sweep: a group is closed before its spread would exceed `tolerance`.
std::vector<Moments> sweep(std::span<const Moments> cells, double tolerance, std::size_t give_up_beyond) {
  std::vector<Moments> groups = {cells[0]};
  for (const Moments& cell : cells.subspan(1)) {
    if (Moments::merged_spread(groups.back(), cell) <= tolerance) {
      groups.back().merge(cell);
    } else {
      if (groups.size() == give_up_beyond) return {};
      groups.push_back(cell);
    }
  }
  return groups;
}

/// Spread of any range of cells in O(1): level h holds, for each cell, the moments from it to the middle of its block
/// of 2^(h+1) cells; two cells that differ first in bit h are in the two halves of one such block.
class RangeSpread {
 public:
  explicit RangeSpread(std::span<const Moments> cells) : cells_(cells) {
    const auto size = static_cast<std::uint32_t>(cells.size());
    levels_.resize(std::bit_width(size - 1));
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      std::vector<Moments>& table = levels_[level];
      table.assign(cells.begin(), cells.end());
      const std::uint32_t half = 1u << level;
      for (std::uint32_t middle = half; middle < size; middle += 2 * half) {
        for (std::uint32_t i = middle - 1; i-- > middle - half;) table[i].merge(table[i + 1]);
        for (std::uint32_t i = middle + 1; i < std::min(size, middle + half); ++i) table[i].merge(table[i - 1]);
      }
    }
  }

  double operator()(std::uint32_t first, std::uint32_t last) const {
    if (first == last) return cells_[first].spread;
    const std::vector<Moments>& table = levels_[std::bit_width(first ^ last) - 1];
    return Moments::merged_spread(table[first], table[last]);
  }

 private:
  std::span<const Moments> cells_;
  std::vector<std::vector<Moments>> levels_;
};

struct Row {
  const RangeSpread& spread;
  const std::vector<double>& before;  ///< before[i]: least error of cells 0 … i with one cluster less
  std::vector<double>& best;
  std::vector<std::int32_t>& start;  ///< first cell of the last cluster

  /// Fills [begin, end]; the answers' starts lie in [low, high].
  void fill(int begin, int end, int low, int high) const {
    if (begin > end) return;
    const int middle = begin + (end - begin) / 2;
    double least = std::numeric_limits<double>::infinity();
    int chosen = low;
    for (int first = low; first <= std::min(high, middle); ++first) {
      const double error = before[first - 1] + spread(first, middle);
      if (error < least) {
        least = error;
        chosen = first;
      }
    }
    best[middle] = least;
    start[middle] = chosen;
    fill(begin, middle - 1, low, chosen);
    fill(middle + 1, end, chosen, high);
  }
};

}  // namespace

std::vector<Moments> group_cells(std::span<const Moments> cells, int limit) {
  const auto most = static_cast<std::size_t>(limit);
  if (cells.size() <= most) return {cells.begin(), cells.end()};
  Moments all;
  for (const Moments& cell : cells) all.merge(cell);
  // Uniform data would need spread / limit³; bracket the tolerance from there on a logarithmic scale, then halve.
  double middle = std::log2(all.spread) - 3 * std::log2(static_cast<double>(limit));
  double too_small = -std::numeric_limits<double>::infinity(), enough = std::numeric_limits<double>::infinity();
  std::vector<Moments> groups;
  double step = 2;
  for (int round = 0; round < 64; ++round) {
    std::vector<Moments> attempt = sweep(cells, std::exp2(middle), most);
    if (attempt.empty()) {
      too_small = middle;
      middle = std::isinf(enough) ? middle + step : (middle + enough) / 2;
    } else {
      groups = std::move(attempt);
      if (groups.size() * 8 >= most * 7 || enough - too_small < 1e-3) break;
      enough = middle;
      middle = std::isinf(too_small) ? middle - step : (too_small + middle) / 2;
    }
    step *= 2;
  }
  return groups.empty() ? sweep(cells, all.spread, most) : groups;
}

Partition optimal_partition(std::span<const Moments> cells, int clusters) {
  const int count = static_cast<int>(cells.size());
  KVQ_ASSERT(clusters >= 1 && clusters <= count);
  const RangeSpread spread(cells);
  std::vector<double> before(count), best(count);
  for (int last = 0; last < count; ++last) before[last] = spread(0, last);
  std::vector<std::vector<std::int32_t>> starts(clusters, std::vector<std::int32_t>(count, 0));
  for (int cluster = 1; cluster < clusters; ++cluster) {
    const Row row{spread, before, best, starts[cluster]};
    // Of the last row only the end is asked for.
    row.fill(cluster == clusters - 1 ? count - 1 : cluster, count - 1, cluster, count - 1);
    std::swap(before, best);
  }
  Partition result;
  result.error = before[count - 1];
  result.centroids.resize(clusters);
  int last = count - 1;
  for (int cluster = clusters - 1; cluster >= 0; --cluster) {
    const int first = starts[cluster][last];
    Moments moments;
    for (int cell = first; cell <= last; ++cell) moments.merge(cells[cell]);
    result.centroids[cluster] = moments.mean;
    last = first - 1;
  }
  return result;
}

}  // namespace kvq
