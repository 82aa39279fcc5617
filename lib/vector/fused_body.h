// No include guard: included once per instruction set, each time in a namespace of its own.

/// sum + factor · a in each lane, rounded once. `Vector`: of floats, by GCC's vector_size.
template <class Vector>
inline Vector fused(float factor, Vector a, Vector sum) {
#ifdef KVQ_SIMD_LEVELS
#if KVQ_SIMD_BYTES == 64
  if constexpr (sizeof(Vector) == 64) return _mm512_fmadd_ps(_mm512_set1_ps(factor), a, sum);
#endif
#if KVQ_SIMD_BYTES >= 32
  if constexpr (sizeof(Vector) == 32) return _mm256_fmadd_ps(_mm256_set1_ps(factor), a, sum);
#endif
#endif
  for (int lane = 0; lane < static_cast<int>(sizeof(Vector) / sizeof(float)); ++lane)
    sum[lane] = __builtin_fmaf(factor, a[lane], sum[lane]);
  return sum;
}
