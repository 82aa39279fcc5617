#pragma once
// The blocks H = E[g gᵀ] of the gradients of head vectors, and what rounding with feedback takes from them.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/fit/sample.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Mean of g gᵀ over the counted tokens, `[kv_heads, head_dim, head_dim]`. `gradients` as `sample.x`. The result does
/// not depend on `threads`.
std::vector<double> gradient_blocks(const TokenSample& sample, std::span<const float> gradients, int head_dim,
                                    int threads);

/// One block made ready.
struct BlockFactor {
  std::vector<std::int32_t> order;  ///< `[dim]` channel at each coding position
  std::vector<double> hessian;      ///< `[dim, dim]` in channel order: mean diagonal 1 before `damp` is added to it
  std::vector<double> updates;      ///< `[dim, dim]` U_jk / U_jj by coding position, 0 for k <= j
  std::vector<double> pivots;       ///< `[dim]` U_jj^-2 by channel: eᵀHe = sum of pivot_j · (own error of step j)²
  bool plain = false;               ///< all gradients were zero: H is taken as the identity
};

/// UᵀU = (H + damp)^-1 with U upper triangular, in coding order. `scales`: s_j of CodingOrder::Energy; ties go to the
/// lower channel. Throws Numeric when H + damp is not positive definite.
BlockFactor factor_block(std::span<const double> block, std::span<const double> scales, CodingOrder order, double damp);

}  // namespace kvq
