#pragma once
// Distances of points to centroids: the inner loops of product quantization, plain loops that the compiler vectorises,
// compiled for several instruction sets and chosen at run time. Every level gives the same bits: sums have a fixed
// order, nothing is contracted.
//
// The distance of x and c is Σ_i w_i (x_i - c_i)², over ascending i, in float. Points lie by channel: `[width,
// stride]`, of which the first `rows` of each channel are looked at.

#include <cstdint>

#include <kvq/core/simd_level.h>

namespace kvq {

struct PointsByChannel {
  const float* x = nullptr;  ///< `[width, stride]`
  std::int64_t rows = 0, stride = 0;
  int width = 0;
  const float* weights = nullptr;  ///< `[width]`
};

/// Pointers do not overlap.
struct CentroidLoops {
  /// Rows per block of `lesser`.
  static constexpr std::int64_t kBlock = 64;

  /// Nearest of `centroids` `[clusters, width]`, the first of equals: its number and distance, `[rows]`.
  void (*nearest)(const PointsByChannel& points, const float* centroids, int clusters, std::uint32_t* owners,
                  float* distances);
  /// lesser = min(distance to `centroid`, before), `[rows]`, and Σ row_weight · lesser of each block of 64 rows (the
  /// last one may have fewer).
  void (*lesser)(const PointsByChannel& points, const float* centroid, const float* row_weights, const float* before,
                 float* lesser, double* block_sums);
};

const CentroidLoops& centroid_loops(SimdLevel level = best_simd_level());

}  // namespace kvq
