#include <kvq/vector/orthogonal_loops.h>

#include <cstring>

namespace kvq {

namespace {

#ifdef KVQ_SIMD_LEVELS
#define KVQ_HADAMARD_LANES 4
#else
#define KVQ_HADAMARD_LANES 1
#endif
namespace portable {
#include "hadamard_body.h"
#include "nearest_code_body.h"
#include "orthogonal_loops_body.h"
}  // namespace portable

#ifdef KVQ_SIMD_LEVELS
#undef KVQ_HADAMARD_LANES
#define KVQ_HADAMARD_LANES 8
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "hadamard_body.h"
#include "nearest_code_body.h"
#include "orthogonal_loops_body.h"
}  // namespace avx2
#pragma GCC pop_options

#undef KVQ_HADAMARD_LANES
#define KVQ_HADAMARD_LANES 16
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "hadamard_body.h"
#include "nearest_code_body.h"
#include "orthogonal_loops_body.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

const OrthogonalLoops& orthogonal_loops(SimdLevel level) {
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
