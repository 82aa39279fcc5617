// No include guard: lane_loops.cpp includes this once per instruction set, each time in a namespace of its own.

template <int kBoundaries>
inline void count_lanes(const float* __restrict x_hat, const float* __restrict boundaries,
                        std::int32_t* __restrict codes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    std::int32_t code = 0;
#pragma GCC unroll 20
    for (int boundary = 0; boundary < kBoundaries; ++boundary) code += boundaries[boundary] < x_hat[lane] ? 1 : 0;
    codes[lane] = code;
  }
}

/// Binary search over 2^kBits - 1 boundaries.
template <int kBits>
inline void search_lanes(const float* __restrict x_hat, const float* __restrict boundaries,
                         std::int32_t* __restrict codes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    std::int32_t code = 0;
#pragma GCC unroll 8
    for (int bit = kBits - 1; bit >= 0; --bit) code += (boundaries[code + (1 << bit) - 1] < x_hat[lane] ? 1 : 0) << bit;
    codes[lane] = code;
  }
}

inline void assign_lanes(const float* __restrict x_hat, const float* __restrict boundaries, int count,
                         std::int32_t* __restrict codes) {
  switch (count) {
    case 0:
      return count_lanes<0>(x_hat, boundaries, codes);
    case 1:
      return count_lanes<1>(x_hat, boundaries, codes);
    case 2:
      return count_lanes<2>(x_hat, boundaries, codes);
    case 3:
      return count_lanes<3>(x_hat, boundaries, codes);
    case 4:
      return count_lanes<4>(x_hat, boundaries, codes);
    case 7:
      return count_lanes<7>(x_hat, boundaries, codes);
    case 9:
      return count_lanes<9>(x_hat, boundaries, codes);
    case 15:
      return count_lanes<15>(x_hat, boundaries, codes);
    case 19:
      return count_lanes<19>(x_hat, boundaries, codes);
    case 31:
      return search_lanes<5>(x_hat, boundaries, codes);
    case 63:
      return search_lanes<6>(x_hat, boundaries, codes);
    case 127:
      return search_lanes<7>(x_hat, boundaries, codes);
    default:
      return search_lanes<8>(x_hat, boundaries, codes);
  }
}

inline void round(const float* __restrict x, const float* __restrict zero, const float* __restrict inverse,
                  const float* __restrict scale, const float* __restrict boundaries, int boundary_count,
                  const float* __restrict decoded, std::int32_t* __restrict codes, float* __restrict restored) {
  float x_hat[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) x_hat[lane] = (x[lane] - zero[lane]) * inverse[lane];
  assign_lanes(x_hat, boundaries, boundary_count, codes);
  for (int lane = 0; lane < kLanes; ++lane) restored[lane] = zero[lane] + scale[lane] * decoded[codes[lane]];
}

/// As vectors by name: left alone, the compiler turns the loops inside out and shuffles. Compilers split what is wider
/// than the machine.
inline constexpr int kVectorBytes = KVQ_SIMD_BYTES < 32 ? 32 : KVQ_SIMD_BYTES;
typedef float Vector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
inline constexpr int kVectorFloats = kVectorBytes / 4, kVectors = kLanes / kVectorFloats;

template <int kRows>
inline void subtract_rows(const float* __restrict weights, std::ptrdiff_t stride, const float* __restrict errors,
                          int count, float* __restrict target) {
  for (int k = 0; k < count; ++k) {
    float* sums = target + static_cast<std::ptrdiff_t>(k) * kLanes;
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Vector sum = *reinterpret_cast<const Vector*>(sums + vector * kVectorFloats);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const Vector error = *reinterpret_cast<const Vector*>(errors + row * kLanes + vector * kVectorFloats);
        sum = sum - weights[row * stride + k] * error;
      }
      *reinterpret_cast<Vector*>(sums + vector * kVectorFloats) = sum;
    }
  }
}

inline void subtract(const float* weights, std::ptrdiff_t stride, const float* errors, int rows, int count,
                     float* target) {
  switch (rows) {
    case 8:
      return subtract_rows<8>(weights, stride, errors, count, target);
    case 1:
      return subtract_rows<1>(weights, stride, errors, count, target);
    default:
      for (int row = 0; row < rows; ++row)
        subtract_rows<1>(weights + row * stride, stride, errors + row * kLanes, count, target);
  }
}

inline constexpr LaneLoops kLoops = {round, subtract};
