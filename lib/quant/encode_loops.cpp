#include <kvq/quant/encode_loops.h>

#include <bit>

namespace kvq {

namespace {

namespace portable {
#include <kvq/vector/nearest_code_body.h>

#include "encode_loops_body.h"
}  // namespace portable

#ifdef KVQ_SIMD_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include <kvq/vector/nearest_code_body.h>

#include "encode_loops_body.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include <kvq/vector/nearest_code_body.h>

#include "encode_loops_body.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

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
