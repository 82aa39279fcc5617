#pragma once
// Counted bits of caches with tiers (tiers.h).
//
// Each tier has pages of its own, as a cache of that many bits has them, 64 tokens each: of whole tokens where a layer
// chooses; where each kv head does, a head's own, with a copy of each token's range and outliers as lists of varying
// length (as eviction_footprint.h has them). A token that comes takes the slot of one that went, the last one moves
// into what is left empty; so a tier of n tokens has ceil(n / 64) pages. Besides, for each token and list, 4 bytes for
// its position, and 4 for its weight as long as it may move. Exact first tokens stand apart, once.

#include <cstdint>
#include <vector>

#include <kvq/quant/eviction_footprint.h>

namespace kvq {

/// Tokens of one layer by tier, sinks left out, ascending: one list per kv head, or a single one.
using TierTokens = std::vector<KeptTokens>;

/// What the caches of a recipe have: 1, or the number of kv heads.
int tier_lists(const Quantizer& quantizer);

/// `tiers` per layer. `outliers`: exact values that were really seen, `[layers, tokens, lists]`, 0 for sinks.
Footprint tier_footprint(const Quantizer& quantizer, std::int64_t tokens, const std::vector<TierTokens>& tiers,
                         const OutliersPerToken& outliers);

/// Forecast: how many tokens a tier has follows from the length; outliers as calibrated.
Footprint forecast_tier_footprint(const Quantizer& quantizer, std::int64_t tokens);

}  // namespace kvq
