#pragma once
// The inner loops of rotations and of the codec that is built on them: plain loops that the compiler vectorises,
// compiled for several instruction sets and chosen at run time. Every level gives the same bits: sums have a fixed
// order, and only `multiply` adds products without rounding them first, on every CPU (those without such an instruction
// take a hundred times as long).

#include <cstdint>

#include <kvq/core/simd_level.h>

namespace kvq {

/// Pointers do not overlap unless said.
struct OrthogonalLoops {
  /// Sylvester's Hadamard matrix, not scaled, on each `block` of the row, in place: for h = 1, 2, 4, … of the block
  /// (a, b) -> (a + b, a - b) on elements h apart. `block`: a power of two that divides `width`.
  void (*mix_blocks)(float* row, int width, int block);
  /// y[row][i] = Σ_j a[row][j] · b[j][i], fused multiply-adds over ascending j; a `[rows, depth]`, b `[depth,
  /// columns]`.
  void (*multiply)(const float* a, std::int64_t rows, int depth, const float* b, int columns, float* y);
  /// mix_blocks of each column of `[rows, columns]`; `block`: a power of two that divides `rows`.
  void (*mix_rows)(float* x, int rows, int columns, int block);
  /// Σ a_i b_i: sixteen sums over i mod 16, folded in halves. `a` may be `b`.
  float (*dot)(const float* a, const float* b, int count);
  /// code = number of the 2^bits - 1 ascending boundaries that are < x.
  void (*assign_codes)(const float* x, int count, const float* boundaries, int bits, std::uint8_t* codes);
  /// y = levels[code].
  void (*look_up)(const std::uint8_t* codes, int count, const float* levels, float* y);
};

const OrthogonalLoops& orthogonal_loops(SimdLevel level = best_simd_level());

}  // namespace kvq
