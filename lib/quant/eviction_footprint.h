#pragma once
// Counted bits of caches that evict.
//
// Where all kv heads keep the same tokens (first-recent), these fill the usual pages one after another; a token that
// comes takes the slot of one that went. Where each head keeps its own, a head has pages of its own: its codes, and a
// copy of each kept token's range (or ranges), since other heads may have dropped it; outliers as lists whose length
// varies, with capacity by the calibrated rate, also where their number per whole token is fixed. Such a head lists the
// positions of its tokens, 4 bytes each, and for h2o the accumulated weight, fp32. Unquantized: fp16 instead of pages.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/footprint.h>

namespace kvq {

/// Kept tokens of one layer, ascending; one list per kv head, or a single one where all keep the same.
using KeptTokens = std::vector<std::vector<std::int64_t>>;

/// What the caches of a recipe have: 1, or the number of kv heads.
int kept_lists(const Quantizer& quantizer);

/// `kept` per layer. `outliers`: exact values that were really seen, `[layers, tokens, lists]` over all tokens so far,
/// 0 for sinks; empty for an unquantized recipe.
Footprint kept_footprint(const Quantizer& quantizer, std::int64_t tokens, const std::vector<KeptTokens>& kept,
                         const OutliersPerToken& outliers);

/// Forecast from budgets and calibrated outlier rates; sinks are taken to be kept where their number allows.
Footprint forecast_kept_footprint(const Quantizer& quantizer, std::int64_t tokens);

}  // namespace kvq
