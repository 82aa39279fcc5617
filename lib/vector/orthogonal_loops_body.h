// No include guard: orthogonal_loops.cpp includes this once per instruction set, each time in a namespace of its own.

#include "fused_body.h"
#include "hadamard_body.h"
#include "nearest_code_body.h"

/// Rows together, so that a matrix that is larger than the registers is read once for all of them.
template <int kRows>
inline void multiply_vectors(const float* __restrict columns, int dim, const float* __restrict x, float* __restrict y) {
  constexpr int kLanes = KVQ_SIMD_BYTES / 4;
  int first = 0;
#ifdef KVQ_SIMD_LEVELS
  for (; first + 2 * kLanes <= dim; first += 2 * kLanes) {
    MixVector low[kRows] = {}, high[kRows] = {};
    for (int j = 0; j < dim; ++j) {
      const float* column = columns + static_cast<std::int64_t>(j) * dim + first;
      MixVector a, b;
      std::memcpy(&a, column, sizeof a);
      std::memcpy(&b, column + kLanes, sizeof b);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float factor = x[static_cast<std::int64_t>(row) * dim + j];
        low[row] = fused(factor, a, low[row]);
        high[row] = fused(factor, b, high[row]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      float* out = y + static_cast<std::int64_t>(row) * dim + first;
      std::memcpy(out, &low[row], sizeof low[row]);
      std::memcpy(out + kLanes, &high[row], sizeof high[row]);
    }
  }
#endif
  for (; first < dim; first += kLanes) {
    const int count = dim - first < kLanes ? dim - first : kLanes;
    for (int row = 0; row < kRows; ++row) {
      float sum[kLanes] = {};
      for (int j = 0; j < dim; ++j) {
        const float factor = x[static_cast<std::int64_t>(row) * dim + j];
        const float* column = columns + static_cast<std::int64_t>(j) * dim + first;
        for (int lane = 0; lane < count; ++lane) sum[lane] = __builtin_fmaf(factor, column[lane], sum[lane]);
      }
      for (int lane = 0; lane < count; ++lane) y[static_cast<std::int64_t>(row) * dim + first + lane] = sum[lane];
    }
  }
}

inline void multiply(const float* columns, int dim, const float* x, std::int64_t rows, float* y) {
  constexpr int kTogether = 4;
  std::int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether)
    multiply_vectors<kTogether>(columns, dim, x + row * dim, y + row * dim);
  for (; row < rows; ++row) multiply_vectors<1>(columns, dim, x + row * dim, y + row * dim);
}

/// Rows of y together, so that those of x are read once for all of them.
template <int kRows>
inline void multiply_row_block(const float* __restrict a, int dim, const float* __restrict x, int columns,
                               float* __restrict y) {
  constexpr int kLanes = KVQ_SIMD_BYTES / 4;
  int first = 0;
#ifdef KVQ_SIMD_LEVELS
  for (; first + 2 * kLanes <= columns; first += 2 * kLanes) {
    MixVector low[kRows] = {}, high[kRows] = {};
    for (int j = 0; j < dim; ++j) {
      const float* row_of_x = x + static_cast<std::int64_t>(j) * columns + first;
      MixVector c, d;
      std::memcpy(&c, row_of_x, sizeof c);
      std::memcpy(&d, row_of_x + kLanes, sizeof d);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float factor = a[static_cast<std::int64_t>(row) * dim + j];
        low[row] = fused(factor, c, low[row]);
        high[row] = fused(factor, d, high[row]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      float* out = y + static_cast<std::int64_t>(row) * columns + first;
      std::memcpy(out, &low[row], sizeof low[row]);
      std::memcpy(out + kLanes, &high[row], sizeof high[row]);
    }
  }
#endif
  for (; first < columns; ++first) {
    for (int row = 0; row < kRows; ++row) {
      float sum = 0.0f;
      for (int j = 0; j < dim; ++j)
        sum = __builtin_fmaf(a[static_cast<std::int64_t>(row) * dim + j],
                             x[static_cast<std::int64_t>(j) * columns + first], sum);
      y[static_cast<std::int64_t>(row) * columns + first] = sum;
    }
  }
}

inline void multiply_rows(const float* a, int dim, const float* x, int columns, float* y) {
  constexpr int kTogether = 4;
  std::int64_t row = 0;
  for (; row + kTogether <= dim; row += kTogether)
    multiply_row_block<kTogether>(a + row * dim, dim, x, columns, y + row * columns);
  for (; row < dim; ++row) multiply_row_block<1>(a + row * dim, dim, x, columns, y + row * columns);
}

inline void mix_rows(float* x, int rows, int columns, int block) {
  mix_far(x, rows * columns, block * columns, columns);
}

inline float dot(const float* a, const float* b, int count) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  int first = 0;
  for (; first + kSums <= count; first += kSums) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kSums; ++lane) sums[lane] += a[first + lane] * b[first + lane];
  }
  for (int lane = 0; first + lane < count; ++lane) sums[lane] += a[first + lane] * b[first + lane];
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

inline void look_up(const std::uint8_t* __restrict codes, int count, const float* __restrict levels,
                    float* __restrict y) {
  for (int index = 0; index < count; ++index) y[index] = levels[codes[index]];
}

inline constexpr OrthogonalLoops kLoops = {mix_blocks, multiply, multiply_rows, mix_rows, dot, assign_codes, look_up};
