#include <kvq/vector/orthogonal_loops.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstring>

namespace kvq {

namespace {

#define KVQ_LOOPS_BODY <kvq/vector/orthogonal_loops_body.h>
#include <kvq/core/simd_levels_body.h>

}  // namespace

const OrthogonalLoops& orthogonal_loops(SimdLevel level) { return loops_of(level); }

}  // namespace kvq
