#include <kvq/quant/encode_loops.h>

#include <bit>

// GCC only: Clang knows no `#pragma GCC target`, and gets the portable loops at whatever level it is told to compile
// for.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVQ_SIMD_LEVELS 1
#endif

namespace kvq {

namespace {

namespace portable {
#include "encode_loops_body.h"
}

#ifdef KVQ_SIMD_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "encode_loops_body.h"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "encode_loops_body.h"
}
#pragma GCC pop_options
#endif

}  // namespace

SimdLevel best_simd_level() {
#ifdef KVQ_SIMD_LEVELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::Avx512;
  }
  if (__builtin_cpu_supports("avx2")) return SimdLevel::Avx2;
#endif
  return SimdLevel::Portable;
}

const EncodeLoops& encode_loops(SimdLevel level) {
  switch (level) {
#ifdef KVQ_SIMD_LEVELS
    case SimdLevel::Avx512:
      return avx512::kLoops;
    case SimdLevel::Avx2:
      return avx2::kLoops;
#endif
    default:
      return portable::kLoops;
  }
}

}  // namespace kvq
