#pragma once
// The best split of ascending cells into contiguous clusters, by dynamic programming.

#include <span>
#include <vector>

#include <kvq/fit/moments.h>

namespace kvq {

/// Merges neighbours into at most `limit` groups of about equal spread: where clusters will be narrow, groups are too,
/// whatever the distribution. Fewer cells than `limit` stay as they are.
std::vector<Moments> group_cells(std::span<const Moments> cells, int limit);

struct Partition {
  std::vector<double> centroids;  ///< ascending, one per cluster
  double error = 0;               ///< sum over clusters of their spread
};

/// Optimal for the given cells (which are never split). `clusters` <= cells. The best last split moves right with the
/// end of the range, so each row of the table takes O(n log n) (divide and conquer); a range's spread is O(1) and free
/// of cancellation (disjoint sparse table of merged moments).
Partition optimal_partition(std::span<const Moments> cells, int clusters);

}  // namespace kvq
