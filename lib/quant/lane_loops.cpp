#include <kvq/quant/lane_loops.h>

namespace kvq {

namespace {

#define KVQ_LOOPS_BODY <kvq/quant/lane_loops_body.h>
#include <kvq/core/simd_levels_body.h>

}  // namespace

const LaneLoops& lane_loops(SimdLevel level) { return loops_of(level); }

}  // namespace kvq
