#pragma once
// Words of the short form for tiers: hi=B (adaptive only), mid=B, lo=B, hi-share=F%, mid-share=F%, keep=F%, newest=N,
// decay=X, hysteresis=F%, by=past|window, per=layer|head. They belong to the whole recipe, not to a side.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/quant/recipe_words.h>
#include <kvq/quant/tiers.h>

namespace kvq {

inline constexpr Words<TierWeights, 2> kTierWeightWords = {
    {{"past", TierWeights::Past}, {"window", TierWeights::Window}}};
inline constexpr Words<bool, 2> kTierListWords = {{{"layer", false}, {"head", true}}};  ///< TierRecipe::per_head

/// For messages about unknown words.
inline constexpr std::string_view kKnownTierWords =
    "hi=B, mid=B, lo=B, hi-share=F%, mid-share=F%, keep=F%, newest=N, decay=X, hysteresis=F%, by=, per=";

inline constexpr int kUsualHighBits = 4, kUsualLowBits = 2;  ///< of `adaptive`

/// Gathered one by one, since the defaults depend on each other.
struct TierWords {
  bool adaptive = false;  ///< the head is `adaptive`, whose bits are hi=
  std::optional<int> high, mid, low, newest;
  std::optional<double> high_share, mid_share, keep, decay, hysteresis;
  std::optional<TierWeights> by;
  std::optional<bool> per_head;
  bool any = false;

  /// False when the word is none of these. `problem`: what is wrong with the argument, if anything.
  bool take(const std::string& name, const std::string& argument, std::string& problem);
  /// Throws Usage for words without lo=, and for hi= without `adaptive`.
  TierRecipe recipe() const;
  bool operator==(const TierWords&) const = default;
};

/// mid= and lo=, then what differs from the defaults; none without tiers.
std::vector<std::string> tier_words(const TierRecipe& tiers);

}  // namespace kvq
