// No include guard: subspace_loops.cpp includes this once per instruction set, each time in a namespace of its own,
// with KVQ_SIMD_BYTES bytes in a vector.

#include "fused_body.h"

constexpr int kVectors = SubspaceLoops::kVectors;

/// kWide vectors of kBytes each from column `first` on, which stay in registers.
template <int kBytes, int kWide>
inline void multiply_columns(const float* matrix, std::int64_t rows, std::int64_t columns, const float* vectors,
                             float* products, std::int64_t first) {
  using Floats __attribute__((vector_size(kBytes))) = float;
  Floats sums[kVectors][kWide] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    Floats values[kWide];
    std::memcpy(values, matrix + row * columns + first, sizeof values);
    const float* of_row = vectors + row * kVectors;
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
#pragma GCC unroll 2
      for (int wide = 0; wide < kWide; ++wide) sums[k][wide] = fused(of_row[k], values[wide], sums[k][wide]);
    }
  }
  for (int k = 0; k < kVectors; ++k) std::memcpy(products + k * columns + first, sums[k], sizeof sums[k]);
}

inline void multiply(const float* matrix, std::int64_t rows, std::int64_t columns, const float* vectors,
                     float* products) {
  constexpr int kLanes = KVQ_SIMD_BYTES / 4;
  std::int64_t first = 0;
#if KVQ_SIMD_BYTES == 64  // 32 registers
  for (; first + 2 * kLanes <= columns; first += 2 * kLanes)
    multiply_columns<KVQ_SIMD_BYTES, 2>(matrix, rows, columns, vectors, products, first);
#endif
  for (; first + kLanes <= columns; first += kLanes)
    multiply_columns<KVQ_SIMD_BYTES, 1>(matrix, rows, columns, vectors, products, first);
#if KVQ_SIMD_BYTES == 64
  for (; first + 8 <= columns; first += 8) multiply_columns<32, 1>(matrix, rows, columns, vectors, products, first);
#endif
  for (; first < columns; ++first) multiply_columns<4, 1>(matrix, rows, columns, vectors, products, first);
}

constexpr SubspaceLoops kLoops = {multiply};
