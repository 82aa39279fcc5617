// No include guard: included once per instruction set, each time in a namespace of its own, with
// KVQ_SIMD_BYTES bytes in a vector. Clang has no __builtin_shuffle and gets loops over floats.

/// For h = from, 2 from, … of the block (a, b) -> (a + b, a - b) on elements h apart; two steps in one pass.
inline void mix_far(float* __restrict row, int width, int block, int from) {
  int step = from;
  for (; 4 * step <= block; step *= 4) {
    for (int first = 0; first < width; first += 4 * step) {
      float* __restrict a = row + first, * __restrict b = a + step, * __restrict c = b + step, * __restrict d = c + step;
      for (int channel = 0; channel < step; ++channel) {
        const float ab = a[channel] + b[channel], a_b = a[channel] - b[channel];
        const float cd = c[channel] + d[channel], c_d = c[channel] - d[channel];
        a[channel] = ab + cd;
        b[channel] = a_b + c_d;
        c[channel] = ab - cd;
        d[channel] = a_b - c_d;
      }
    }
  }
  if (2 * step > block) return;
  for (int first = 0; first < width; first += 2 * step) {
    float* __restrict a = row + first, * __restrict b = a + step;
    for (int channel = 0; channel < step; ++channel) {
      const float sum = a[channel] + b[channel], difference = a[channel] - b[channel];
      a[channel] = sum;
      b[channel] = difference;
    }
  }
}

#ifdef KVQ_SIMD_LEVELS
constexpr int kMixLanes = KVQ_SIMD_BYTES / 4;
using MixVector __attribute__((vector_size(KVQ_SIMD_BYTES))) = float;
using MixMask __attribute__((vector_size(KVQ_SIMD_BYTES))) = std::int32_t;

/// One step within a vector: every element with its partner `kStep` away. a - b is taken as a + (-b), which is the
/// same.
template <int kStep>
inline void mix_lanes(MixVector& v) {
  MixMask partner, sign;
#pragma GCC unroll 16
  for (int lane = 0; lane < kMixLanes; ++lane) {
    partner[lane] = lane ^ kStep;
    sign[lane] = (lane & kStep) != 0 ? INT32_MIN : 0;
  }
  const MixVector other = __builtin_shuffle(v, partner);
  v = other + reinterpret_cast<MixVector>(reinterpret_cast<MixMask>(v) ^ sign);
}
#endif

/// Sylvester's Hadamard matrix, not scaled, on each `block` (a power of two that divides `width`) of the row, in place.
inline void mix_blocks(float* row, int width, int block) {
#ifdef KVQ_SIMD_LEVELS
  if (block >= kMixLanes) {
    for (int first = 0; first < width; first += kMixLanes) {
      MixVector v;  // memcpy: rows are aligned as floats only
      std::memcpy(&v, row + first, sizeof v);
      mix_lanes<1>(v);
      mix_lanes<2>(v);
      if constexpr (kMixLanes > 4) mix_lanes<4>(v);
      if constexpr (kMixLanes > 8) mix_lanes<8>(v);
      std::memcpy(row + first, &v, sizeof v);
    }
    mix_far(row, width, block, kMixLanes);
    return;
  }
#endif
  mix_far(row, width, block, 1);
}
