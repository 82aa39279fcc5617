#pragma once
// The tables of rounding with feedback, and widths per RoPE pair with their codebooks. Internal to lib/fit.

#include <span>
#include <vector>

#include <kvq/fit/normalise.h>
#include <kvq/fit/qnorm.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Fills quantizer.feedback from gradient_blocks(); its ranges must be there. Returns what a channel's own rounding
/// error costs, `[kv_heads, head_dim]`: U_jj^-2 with feedback, else H_jj; each head in a unit of its own. `fell_back`
/// is set where gradients are all zero and H is taken as the identity. Throws Numeric naming the head.
std::vector<double> fit_feedback(SideQuantizer& quantizer, std::span<const double> blocks, bool& fell_back);

/// Fills quantizer.widths and .codebooks. Per head vector the sum of costs_j s_j² m(b_j) is least, m(b) being the
/// weighted error of the optimal codebook of b bits on all of `data`; then each width's codebook is fitted to the
/// channels that have it. Returns the error of the whole.
CodebookError fit_pair_widths(SideQuantizer& quantizer, const NormalisedData& data, std::span<const double> costs,
                              int rotary_dim, int threads);

}  // namespace kvq
