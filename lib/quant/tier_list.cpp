#include <kvq/quant/tier_list.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include <kvq/core/error.h>

namespace kvq {

std::int64_t TierList::lightest_of(int tier) const {
  // The newest tokens stay in the first tier.
  const std::int64_t end = tier == 0 ? length() - recipe_.newest : length();
  std::int64_t found = -1;
  float least = std::numeric_limits<float>::infinity();
  for (std::int64_t position = sinks_; position < end; ++position) {
    const auto index = static_cast<std::size_t>(position);
    if (tier_[index] == tier && weight_[index] < least) least = weight_[index], found = position;
  }
  return found;
}

std::int64_t TierList::heaviest_of(int tier) const {
  std::int64_t found = -1;
  for (std::int64_t position = sinks_; position < length(); ++position) {
    const auto index = static_cast<std::size_t>(position);
    if (tier_[index] == tier && (found < 0 || weight_[index] > weight_[static_cast<std::size_t>(found)]))
      found = position;
  }
  return found;
}

void TierList::move(std::int64_t position, int to, std::vector<Move>& moves) {
  int& tier = tier_[static_cast<std::size_t>(position)];
  moves.push_back({position, tier, to});
  --count_[static_cast<std::size_t>(tier)];
  ++count_[static_cast<std::size_t>(to)];
  tier = to;
}

std::vector<TierList::Move> TierList::append() {
  std::vector<Move> moves;
  const bool exact = length() < sinks_;
  tier_.push_back(exact ? kExact : 0);
  weight_.push_back(0.0f);
  if (exact) return moves;
  ++count_[0];
  const std::vector<std::int64_t> limits = tier_limits(recipe_, length() - sinks_);
  std::int64_t so_far = 0;
  for (int tier = 0; tier < tiers(); ++tier) {
    so_far += count_[static_cast<std::size_t>(tier)];
    for (; so_far > limits[static_cast<std::size_t>(tier)]; --so_far) {
      const std::int64_t position = lightest_of(tier);
      KVQ_ASSERT(position >= 0);
      move(position, tier + 1, moves);
    }
  }
  for (int tier = 0; recipe_.hysteresis && tier + 1 < tiers(); ++tier) {
    const std::int64_t above = lightest_of(tier), below = heaviest_of(tier + 1);
    if (above < 0 || below < 0) continue;
    const double needed = (1.0 + *recipe_.hysteresis) * weight_[static_cast<std::size_t>(above)];
    if (!(weight_[static_cast<std::size_t>(below)] > needed)) continue;
    move(above, tier + 1, moves);
    move(below, tier, moves);
  }
  return moves;
}

void TierList::add(std::span<const float> weights) {
  KVQ_ASSERT(weights.size() == weight_.size());
  const auto decay = static_cast<float>(recipe_.decay);
  for (std::size_t index = 0; index < weights.size(); ++index) weight_[index] = decay * weight_[index] + weights[index];
}

std::vector<std::vector<std::int64_t>> TierList::positions() const {
  std::vector<std::vector<std::int64_t>> lists(static_cast<std::size_t>(tiers()));
  for (std::int64_t position = 0; position < length(); ++position) {
    if (const int own = tier(position); own >= 0 && own < tiers())
      lists[static_cast<std::size_t>(own)].push_back(position);
  }
  return lists;
}

std::vector<int> tiers_by_weight(const TierRecipe& recipe, int sinks, std::span<const float> weights) {
  std::vector<int> tier(weights.size(), TierList::kExact);
  const auto first = std::min(static_cast<std::size_t>(sinks), weights.size());
  std::vector<std::size_t> order(weights.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  const std::vector<std::int64_t> limits = tier_limits(recipe, static_cast<std::int64_t>(order.size()));
  int own = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    while (static_cast<std::int64_t>(rank) >= limits[static_cast<std::size_t>(own)]) ++own;
    tier[order[rank]] = own;
  }
  return tier;
}

}  // namespace kvq
