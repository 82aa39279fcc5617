#pragma once
// Numbers as the encoders compare and store them: the operations of lib/quant/encoder.h on the GPU.

#include <cmath>

#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

constexpr std::int32_t kLowest = static_cast<std::int32_t>(0x80000000u), kHighest = 0x7fffffff;  // keys of no number

__device__ __forceinline__ float inverse_of(float scale) {
  const float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
  return isfinite(inverse) ? inverse : 0.0f;
}

/// Integers in the order of floats; -0 is 0.
__device__ __forceinline__ std::int32_t order_key(float x) {
  const std::int32_t bits = __float_as_int(__fadd_rn(x, 0.0f));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float number_of_key(std::int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

/// Zero and scale of a token as stored, fp16 of x · 2^-exponent.
struct HalfRange {
  std::uint16_t zero, scale;
};
__device__ __forceinline__ HalfRange half_range(float minimum, float maximum, int exponent) {
  const float to_stored = power_of_two(-exponent), from_stored = power_of_two(exponent);
  HalfRange range;
  range.zero = __half_as_ushort(
      __float2half_rn(__fmul_rn(__fadd_rn(__fmul_rn(0.5f, minimum), __fmul_rn(0.5f, maximum)), to_stored)));
  const float zero = __fmul_rn(half_bits_to_float(range.zero), from_stored);
  const float scale = fmaxf(__fsub_rn(maximum, zero), __fsub_rn(zero, minimum));
  range.scale = __half_as_ushort(__float2half_rn(__fmul_rn(scale, to_stored)));
  return range;
}

}  // namespace kvq::cuda
