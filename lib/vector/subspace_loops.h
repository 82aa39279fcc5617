#pragma once
// Products of a matrix with a few vectors: the inner loop of subspace iteration, compiled for several instruction sets
// and chosen at run time. Every level gives the same bits: fused multiply-adds over ascending rows.

#include <cstdint>

#include <kvq/core/simd_level.h>

namespace kvq {

/// Pointers do not overlap.
struct SubspaceLoops {
  /// Vectors that are multiplied at once.
  static constexpr int kVectors = 8;

  /// products[k][column] = Σ_row matrix[row][column] · vectors[row][k]: `[kVectors, columns]` from `[rows, columns]`
  /// and
  /// `[rows, kVectors]`.
  void (*multiply)(const float* matrix, std::int64_t rows, std::int64_t columns, const float* vectors, float* products);
};

const SubspaceLoops& subspace_loops(SimdLevel level = best_simd_level());

}  // namespace kvq
