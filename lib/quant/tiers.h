#pragma once
// Tiers of bits: every token is written at the bits of the first tier, and those that receive little attention are
// re-encoded, from their stored codes, to the fewer bits of the tiers below. Here are the pure rules; queries and
// softmax are the cache's business (lib/cache/layer_tiers.h).
//
// Of the first n tokens that are not exact (sinks are, and have no tier) at most tier_limits(n) stand in the tiers from
// the first on. Whenever a token too many is there, the one of least weight goes a tier down; the newest tokens stay in
// the first tier. weight = Σ over queries q of decay^(now - q) · softmax weight that q gave the token, summed over the
// query heads of the list that chooses (a layer's, or a kv head's).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvq {

enum class TierWeights {
  Past,    ///< of the queries so far
  Window,  ///< of the whole window that is judged: an oracle, simulated only, never counted as a cache
};

/// Bits of the first tier are those of the recipe's sides.
struct TierRecipe {
  int low = 0;              ///< bits of the last tier; 0: no tiers
  int mid = 0;              ///< bits of the one between; 0: none
  double high_share = 0.0;  ///< share of the tokens in the first tier
  double mid_share = 0.0;   ///< and in the middle one
  double keep = 1.0;        ///< share of the tokens that is kept at all: below the last tier a token is dropped
  int newest = 0;           ///< that many newest tokens stay in the first tier
  double decay = 1.0;       ///< of weights, a query; 1: none
  std::optional<double> hysteresis;  ///< a token that weighs so much more than the lightest above takes its place
  TierWeights by = TierWeights::Past;
  bool per_head = false;  ///< each kv head chooses for itself, else a layer
  bool operator==(const TierRecipe&) const = default;

  bool any() const { return low != 0; }
  bool oracle() const { return any() && by == TierWeights::Window; }
};

/// What is not said otherwise, for so many tiers.
TierRecipe usual_tiers(bool with_mid, TierWeights by);

/// Throws Usage, saying which field cannot be. `high`: bits of the first tier.
void validate_tiers(const TierRecipe& tiers, int high);

/// Bits of the tiers below the first.
std::vector<int> lower_tier_bits(const TierRecipe& tiers);

/// Of `tokens` tokens that are not exact, how many stand in the first tier, in the first two, …; the last number is
/// how many are kept. A token more raises each by one at most.
std::vector<std::int64_t> tier_limits(const TierRecipe& tiers, std::int64_t tokens);

/// Whether tokens of a tier may still move, so that their weight is held: not those of the last one, unless tokens are
/// dropped or come back.
bool tier_moves(const TierRecipe& tiers, int tier);

/// Mean bits of a code over all tokens, by the shares.
double tier_nominal_bits(const TierRecipe& tiers, double high);

}  // namespace kvq
