#include <kvq/quant/token_outliers.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

#include <kvq/core/error.h>

namespace kvq {

namespace {

// No finite float has these keys.
constexpr std::int32_t kNeverLargest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNeverSmallest = std::numeric_limits<std::int32_t>::max();

/// Up to so many per end, a scan for each is faster than a partition of all.
constexpr int kMostScans = 12;

float float_of_key(std::int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

/// Unsigned integers in the order of the keys.
std::uint64_t rank_of_key(std::int32_t key) { return static_cast<std::uint32_t>(key) ^ 0x80000000u; }

}  // namespace

ExtremeSelector::ExtremeSelector(const EncodeLoops& loops, int width)
    : loops_(loops), from_top_(static_cast<std::size_t>(width)), from_bottom_(static_cast<std::size_t>(width)) {}

ExtremeSelector::Rest ExtremeSelector::select(std::span<const float> x, int per_end, std::span<std::uint8_t> mask) {
  const int count = static_cast<int>(x.size());
  KVQ_ASSERT(2 * per_end < count && x.size() == from_top_.size());
  loops_.order_keys(x.data(), count, from_top_.data(), from_bottom_.data());
  std::fill(mask.begin(), mask.end(), std::uint8_t{0});
  if (per_end <= kMostScans) {
    take_one_by_one(per_end, mask);
  } else {
    take_by_partition(per_end, mask);
  }
  return {float_of_key(loops_.smallest(from_bottom_.data(), count)),
          float_of_key(loops_.largest(from_top_.data(), count))};
}

void ExtremeSelector::take(int channel, std::span<std::uint8_t> mask) {
  const auto index = static_cast<std::size_t>(channel);
  mask[index] = 1;
  from_top_[index] = kNeverLargest;
  from_bottom_[index] = kNeverSmallest;
}

void ExtremeSelector::take_one_by_one(int per_end, std::span<std::uint8_t> mask) {
  const int count = static_cast<int>(from_top_.size());
  for (int taken = 0; taken < per_end; ++taken) {
    take(loops_.first_equal(from_top_.data(), count, loops_.largest(from_top_.data(), count)), mask);
  }
  for (int taken = 0; taken < per_end; ++taken) {
    take(loops_.first_equal(from_bottom_.data(), count, loops_.smallest(from_bottom_.data(), count)), mask);
  }
}

void ExtremeSelector::take_by_partition(int per_end, std::span<std::uint8_t> mask) {
  const auto take_smallest_ranks = [&](auto rank) {
    ranked_.clear();
    for (std::size_t channel = 0; channel < from_top_.size(); ++channel) {
      if (!mask[channel]) ranked_.push_back(rank(channel) << 32 | channel);
    }
    std::nth_element(ranked_.begin(), ranked_.begin() + per_end, ranked_.end());
    for (int taken = 0; taken < per_end; ++taken) {
      take(static_cast<int>(ranked_[static_cast<std::size_t>(taken)] & 0xffffffffu), mask);
    }
  };
  take_smallest_ranks([&](std::size_t channel) { return 0xffffffffu - rank_of_key(from_top_[channel]); });
  take_smallest_ranks([&](std::size_t channel) { return rank_of_key(from_bottom_[channel]); });
}

void keep_largest_excess(std::span<const float> x, std::span<const float> lower, std::span<const float> upper,
                         std::span<const float> inverse, int limit, std::span<std::uint8_t> mask) {
  struct Candidate {
    float excess;
    std::size_t channel;
  };
  std::vector<Candidate> candidates;
  for (std::size_t channel = 0; channel < x.size(); ++channel) {
    if (!mask[channel]) continue;
    const float beyond = x[channel] < lower[channel] ? lower[channel] - x[channel] : x[channel] - upper[channel];
    const float excess = inverse[channel] > 0.0f ? beyond * inverse[channel] : std::numeric_limits<float>::infinity();
    candidates.push_back({excess, channel});
  }
  if (static_cast<int>(candidates.size()) <= limit) return;
  std::nth_element(candidates.begin(), candidates.begin() + limit, candidates.end(), [](const auto& a, const auto& b) {
    return a.excess != b.excess ? a.excess > b.excess : a.channel < b.channel;
  });
  for (auto dropped = candidates.begin() + limit; dropped != candidates.end(); ++dropped) mask[dropped->channel] = 0;
}

}  // namespace kvq
