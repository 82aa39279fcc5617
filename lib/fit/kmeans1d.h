#pragma once
// Globally optimal weighted k-means in one dimension: least sum of w (x - nearest centroid)².

#include <span>
#include <vector>

namespace kvq {

struct KMeans1dResult {
  std::vector<double> centroids;  ///< ascending, exactly `clusters`
  double error = 0;               ///< sum of w (x - nearest centroid)²
  double weight = 0;              ///< sum of w
};

/// Dynamic programming on a fine weighted histogram (on the values themselves when they are few), then exact polish
/// (Lloyd) on the data. Deterministic and independent of `threads`. `values` are finite; `weights` has the size of
/// `values` or is empty (all 1).
/// - All zero weights: taken as all 1. A value of weight 0 beside others counts for nothing.
/// - Fewer distinct values than clusters: error 0, and the spare centroids are placed ascending without changing any
///   assignment.
/// - No values: all centroids 0.
/// Throws Numeric when a value or weight is not finite or a weight is negative.
KMeans1dResult kmeans1d(std::span<const float> values, std::span<const float> weights, int clusters, int threads);

}  // namespace kvq
