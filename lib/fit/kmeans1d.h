#pragma once
// Globally optimal weighted k-means in one dimension.

#include <span>
#include <vector>

namespace kvq {

struct KMeans1dResult {
  std::vector<double> centroids;  ///< ascending, exactly `clusters`
  double error = 0;               ///< sum of w (x - nearest centroid)²
};

/// Dynamic programming on a fine weighted histogram, then exact polish (Lloyd) on the data.
/// `weights` has the size of `values` or is empty (all 1). All zero weights: taken as all 1. Fewer distinct values than
/// clusters: error 0, and the spare centroids are placed ascending without changing any assignment.
KMeans1dResult kmeans1d(std::span<const float> values, std::span<const float> weights, int clusters, int threads);

}  // namespace kvq
