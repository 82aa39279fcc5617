#include <kvq/vector/centroid_loops.h>

#include <cstring>

namespace kvq {

namespace {

#define KVQ_LOOPS_BODY <kvq/vector/centroid_loops_body.h>
#include <kvq/core/simd_levels_body.h>

}  // namespace

const CentroidLoops& centroid_loops(SimdLevel level) { return loops_of(level); }

}  // namespace kvq
