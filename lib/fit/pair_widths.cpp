#include <kvq/fit/pair_widths.h>

#include <cstddef>
#include <limits>

#include <kvq/core/error.h>

namespace kvq {

std::vector<std::pair<int, int>> channel_pairs(int head_dim, int rotary_dim) {
  KVQ_ASSERT(head_dim % 2 == 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim);
  std::vector<std::pair<int, int>> pairs;
  for (const auto& [first, count] : {std::pair(0, rotary_dim), std::pair(rotary_dim, head_dim - rotary_dim)})
    for (int channel = first; channel < first + count / 2; ++channel) pairs.emplace_back(channel, channel + count / 2);
  return pairs;
}

std::vector<int> allocate_widths(std::span<const double> costs, std::span<const int> choices,
                                 std::span<const double> distortion, int total) {
  KVQ_ASSERT(choices.size() == distortion.size());
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto sums = static_cast<std::size_t>(total) + 1;
  std::vector<double> least(sums, kNever), next(sums);
  least[0] = 0;
  std::vector<std::vector<int>> chosen(costs.size(), std::vector<int>(sums, -1));  // index into choices
  for (std::size_t pair = 0; pair < costs.size(); ++pair) {
    next.assign(sums, kNever);
    for (std::size_t choice = 0; choice < choices.size(); ++choice) {
      const auto width = static_cast<std::size_t>(choices[choice]);
      for (std::size_t sum = width; sum < sums; ++sum) {
        const double cost = least[sum - width] + costs[pair] * distortion[choice];
        if (cost < next[sum]) {
          next[sum] = cost;
          chosen[pair][sum] = static_cast<int>(choice);
        }
      }
    }
    least.swap(next);
  }
  KVQ_ASSERT(least[sums - 1] < kNever);
  std::vector<int> widths(costs.size());
  std::size_t sum = sums - 1;
  for (std::size_t pair = costs.size(); pair-- > 0;) {
    widths[pair] = choices[static_cast<std::size_t>(chosen[pair][sum])];
    sum -= static_cast<std::size_t>(widths[pair]);
  }
  return widths;
}

}  // namespace kvq
