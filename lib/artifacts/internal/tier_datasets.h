#pragma once
// Codebooks of the tiers below the first (kvq/quant/tiers.h) of one layer and side. What is there follows from the
// recipe; without tiers nothing is.

#include <kvq/artifacts/internal/h5.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

void write_tiers(const h5::Group& group, const SideQuantizer& side);
/// Wants `side.recipe` to be set. Throws Format as read_codebooks() does.
void read_tiers(const h5::Group& group, const TierRecipe& tiers, SideQuantizer& side);

}  // namespace kvq
