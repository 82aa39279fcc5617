#pragma once
// Words of the short form for eviction: evict=RULE, budget=N|F%, first=N, positions=cache|original, heavy=F%,
// observe=N, pool=max|avg, kernel=N, beta=X. They belong to the whole recipe, not to a side.

#include <optional>
#include <string>
#include <vector>

#include <kvq/quant/eviction.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

inline constexpr Words<EvictionRule, 4> kEvictionWords = {{{"first-recent", EvictionRule::FirstRecent},
                                                           {"h2o", EvictionRule::H2o},
                                                           {"snapkv", EvictionRule::SnapKv},
                                                           {"pyramidkv", EvictionRule::PyramidKv}}};
inline constexpr Words<Pooling, 2> kPoolingWords = {{{"max", Pooling::Max}, {"avg", Pooling::Avg}}};
/// EvictionRecipe::cache_positions
inline constexpr Words<bool, 2> kPositionWords = {{{"cache", true}, {"original", false}}};

/// For messages about unknown words.
inline constexpr std::string_view kKnownEvictionWords =
    "evict=, budget=N or F%, first=N, positions=, heavy=F%, observe=N, pool=, kernel=N, beta=X";

/// Gathered one by one, since the defaults depend on the rule.
struct EvictionWords {
  EvictionRule rule = EvictionRule::None;
  std::optional<int> tokens, first, observe, kernel;
  std::optional<double> share, heavy, beta;
  std::optional<bool> cache_positions;
  std::optional<Pooling> pooling;
  bool any = false;

  /// False when the word is none of these. `problem`: what is wrong with the argument, if anything.
  bool take(const std::string& name, const std::string& argument, std::string& problem);
  /// Throws Usage for words without evict=, and for a missing budget.
  EvictionRecipe recipe() const;
  bool operator==(const EvictionWords&) const = default;
};

/// evict= and budget=, then what differs from the rule's defaults; none without eviction.
std::vector<std::string> eviction_words(const EvictionRecipe& eviction);

}  // namespace kvq
