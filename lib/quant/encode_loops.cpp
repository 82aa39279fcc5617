#include <kvq/quant/encode_loops.h>

#include <bit>

namespace kvq {

namespace {

#define KVQ_LOOPS_BODY <kvq/quant/encode_loops_body.h>
#include <kvq/core/simd_levels_body.h>

}  // namespace

const EncodeLoops& encode_loops(SimdLevel level) { return loops_of(level); }

}  // namespace kvq
