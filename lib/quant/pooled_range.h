#pragma once
// Percentiles of values that share a range: of a channel, of a group of channels, of all.

#include <span>
#include <vector>

namespace kvq {

/// For each channel the percentiles `tail` and 1 - tail (numpy 'linear') of its group's values, `[width]`.
struct PooledRange {
  std::vector<float> lower, upper;
};
/// `parts`: runs of tokens, each `[tokens, width]`, not all empty. Groups are `group` consecutive channels, the last
/// may be smaller; 1: each channel by itself.
PooledRange pooled_range(std::span<const std::span<const float>> parts, int width, int group, double tail, int threads);

}  // namespace kvq
