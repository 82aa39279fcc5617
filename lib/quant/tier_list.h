#pragma once
// Which tier each token of one layer, or of one kv head, stands in: the rule of tiers.h, one token after another.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/tiers.h>

namespace kvq {

/// State of one sequence.
class TierList {
 public:
  static constexpr int kExact = -1;  ///< instead of a tier: a sink

  TierList(const TierRecipe& recipe, int sinks) : recipe_(recipe), sinks_(sinks) {}

  /// A token leaves a tier for another one; `to` == tiers(): it is dropped.
  struct Move {
    std::int64_t position;
    int from, to;
    bool operator==(const Move&) const = default;
  };
  /// The next token comes, into the first tier; what is too much there goes down, the lightest first, of equal ones the
  /// earlier. With hysteresis, then, for each pair of neighbouring tiers from the first on: the heaviest below (of
  /// equal ones the earlier) and the lightest above change places if it weighs so much more. Moves in their order; by
  /// the weights of the queries so far.
  std::vector<Move> append();
  /// What the query of the newest token gave every token, summed over its heads; `[length()]`.
  void add(std::span<const float> weights);

  int tiers() const { return static_cast<int>(lower_tier_bits(recipe_).size()) + 1; }
  std::int64_t length() const { return static_cast<std::int64_t>(tier_.size()); }
  int tier(std::int64_t position) const { return tier_[static_cast<std::size_t>(position)]; }
  bool dropped(std::int64_t position) const { return tier(position) == tiers(); }
  /// By tier; sinks and dropped tokens are in none.
  std::vector<std::vector<std::int64_t>> positions() const;

 private:
  std::int64_t lightest_of(int tier) const;
  std::int64_t heaviest_of(int tier) const;
  void move(std::int64_t position, int to, std::vector<Move>& moves);

  TierRecipe recipe_;
  int sinks_;
  std::vector<int> tier_;
  std::vector<float> weight_;
  std::vector<std::int64_t> count_ = std::vector<std::int64_t>(static_cast<std::size_t>(tiers()) + 1);
};

/// The oracle's choice: the tier of each token (sinks: TierList::kExact) by weights that are all known, the heaviest
/// first, of equal ones the earlier.
std::vector<int> tiers_by_weight(const TierRecipe& recipe, int sinks, std::span<const float> weights);

}  // namespace kvq
