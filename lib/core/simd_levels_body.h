// No include guard: a file of loops includes this within its own unnamed namespace, once, after
//
//     #define KVQ_LOOPS_BODY <kvq/module/some_loops_body.h>
//
// The body is compiled once per instruction set, each time in a namespace of its own with KVQ_SIMD_BYTES bytes in a
// vector, and ends with the table `kLoops`; loops_of() chooses among these tables.

namespace portable {
#define KVQ_SIMD_BYTES 16
#include KVQ_LOOPS_BODY
#undef KVQ_SIMD_BYTES
}  // namespace portable

#ifdef KVQ_SIMD_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define KVQ_SIMD_BYTES 32
#include KVQ_LOOPS_BODY
#undef KVQ_SIMD_BYTES
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace avx512 {
#define KVQ_SIMD_BYTES 64
#include KVQ_LOOPS_BODY
#undef KVQ_SIMD_BYTES
}  // namespace avx512
#pragma GCC pop_options
#endif

inline const auto& loops_of(SimdLevel level) {
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
