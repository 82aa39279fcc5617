#include <kvq/quant/lane_loops.h>

namespace kvq {

namespace {

#define KVQ_LANE_VECTOR_BYTES 32
namespace portable {
#include "lane_loops_body.h"
}

#ifdef KVQ_SIMD_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "lane_loops_body.h"
}
#pragma GCC pop_options

#undef KVQ_LANE_VECTOR_BYTES
#define KVQ_LANE_VECTOR_BYTES 64
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "lane_loops_body.h"
}
#pragma GCC pop_options
#endif

}  // namespace

const LaneLoops& lane_loops(SimdLevel level) {
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
