// No include guard: orthogonal_loops.cpp includes this once per instruction set, each time in a namespace of its own.

#include "fused_body.h"
#include "hadamard_body.h"
#include "nearest_code_body.h"

/// Rows together, so that a matrix that is larger than the registers is read once for all of them.
template <int kRows>
inline void multiply_rows(const float* __restrict a, int depth, const float* __restrict b, int columns,
                          float* __restrict y) {
  constexpr int kLanes = KVQ_SIMD_BYTES / 4;
  int first = 0;
#ifdef KVQ_SIMD_LEVELS
  for (; first + 2 * kLanes <= columns; first += 2 * kLanes) {
    MixVector low[kRows] = {}, high[kRows] = {};
    for (int j = 0; j < depth; ++j) {
      const float* row_of_b = b + static_cast<std::int64_t>(j) * columns + first;
      MixVector c, d;
      std::memcpy(&c, row_of_b, sizeof c);
      std::memcpy(&d, row_of_b + kLanes, sizeof d);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float factor = a[static_cast<std::int64_t>(row) * depth + j];
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
  for (; first < columns; first += kLanes) {
    const int count = columns - first < kLanes ? columns - first : kLanes;
    for (int row = 0; row < kRows; ++row) {
      float sum[kLanes] = {};
      for (int j = 0; j < depth; ++j) {
        const float factor = a[static_cast<std::int64_t>(row) * depth + j];
        const float* row_of_b = b + static_cast<std::int64_t>(j) * columns + first;
        for (int lane = 0; lane < count; ++lane) sum[lane] = __builtin_fmaf(factor, row_of_b[lane], sum[lane]);
      }
      for (int lane = 0; lane < count; ++lane) y[static_cast<std::int64_t>(row) * columns + first + lane] = sum[lane];
    }
  }
}

inline void multiply(const float* a, std::int64_t rows, int depth, const float* b, int columns, float* y) {
  constexpr int kTogether = 4;
  std::int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether)
    multiply_rows<kTogether>(a + row * depth, depth, b, columns, y + row * columns);
  for (; row < rows; ++row) multiply_rows<1>(a + row * depth, depth, b, columns, y + row * columns);
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

inline constexpr OrthogonalLoops kLoops = {mix_blocks, multiply, mix_rows, dot, assign_codes, look_up};
