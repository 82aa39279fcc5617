#include <kvq/vector/centroid_loops.h>

#include <cstring>

namespace kvq {

namespace {

#define KVQ_CENTROID_LANES 4
namespace portable {
#include "centroid_loops_body.h"
}  // namespace portable

#ifdef KVQ_SIMD_LEVELS
#undef KVQ_CENTROID_LANES
#define KVQ_CENTROID_LANES 8
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "centroid_loops_body.h"
}  // namespace avx2
#pragma GCC pop_options

#undef KVQ_CENTROID_LANES
#define KVQ_CENTROID_LANES 16
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "centroid_loops_body.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

const CentroidLoops& centroid_loops(SimdLevel level) {
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
