#pragma once
// Tables of the codecs of head vectors (kvq/quant/vector_side.h) for one side of one layer. Internal to lib/fit.

#include <span>

#include <kvq/fit/sample.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Fills vector_tables, and block_bytes where blocks vary in size. `sample`: as the recipe sees it. `roots`, `[tokens,
/// width]` or empty: squares are what errors weigh (gradients, query_weight_roots()); pq takes them as a weight of the
/// row times a weight of the channel, sums over each. `fell_back`: set where they are all zero.
///
/// Tables are fitted to at most 16384 head vectors that count, in runs of consecutive ones: of all heads together or of
/// one.
void fit_vector_tables(SideQuantizer& quantizer, const TokenSample& sample, std::span<const float> roots, int threads,
                       bool& fell_back);

}  // namespace kvq
