#include <kvq/core/simd_level.h>

namespace kvq {

SimdLevel best_simd_level() {
#ifdef KVQ_SIMD_LEVELS
  if (!__builtin_cpu_supports("fma")) return SimdLevel::Portable;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::Avx512;
  }
  if (__builtin_cpu_supports("avx2")) return SimdLevel::Avx2;
#endif
  return SimdLevel::Portable;
}

}  // namespace kvq
