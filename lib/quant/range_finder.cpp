#include <kvq/quant/range_finder.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/quant/token_outliers.h>

namespace kvq {

namespace {

constexpr std::int64_t kUnitTokens = 64;
constexpr float kLeastAtomRange = 1e-5f;

/// Minimum and maximum of the values that are not exact; count of them.
struct Extremes {
  float minimum = INFINITY, maximum = -INFINITY;
  void add(float x) {
    minimum = x < minimum ? x : minimum;
    maximum = x > maximum ? x : maximum;
  }
  bool any() const { return minimum <= maximum; }
};

}  // namespace

RangeFinder::RangeFinder(const SideQuantizer& quantizer, SimdLevel level)
    : loops_(encode_loops(level)),
      recipe_(quantizer.recipe),
      width_(quantizer.width()),
      cap_(outlier_cap(recipe_.cap, width_)),
      to_stored_(power_of_two(-quantizer.exponent)),
      from_stored_(power_of_two(quantizer.exponent)) {
  KVQ_ASSERT(!is_block_format(recipe_.codebook) && recipe_.range != RangeKind::Window);
  per_end_ = outliers_per_end(recipe_.outliers, recipe_.axis == Axis::ChannelGroup ? recipe_.group : width_);
  if (!stores_thresholds(recipe_)) return;
  lower_ = quantizer.lower, upper_ = quantizer.upper;
  if (lower_.size() != static_cast<std::size_t>(width_) || upper_.size() != lower_.size()) {
    fail(ErrorKind::Mismatch, fmt::format("quantizer has {} lower and {} upper thresholds for {} channels",
                                          lower_.size(), upper_.size(), width_));
  }
  for (std::size_t channel = 0; channel < lower_.size(); ++channel) {
    const ChannelAffine affine = channel_affine(lower_[channel], upper_[channel]);
    zero_.push_back(affine.zero), scale_.push_back(affine.scale);
    inverse_.push_back(inverse_of(affine.scale));
  }
}

std::int64_t RangeFinder::unit_tokens() const {
  return recipe_.axis == Axis::ChannelGroup ? std::max<std::int64_t>(kUnitTokens, recipe_.group) : kUnitTokens;
}

bool RangeFinder::store(float minimum, float maximum, Range& range) const {
  const auto half = [&](float value, float& read, std::uint16_t& stored) {
    stored = float_to_half(value * to_stored_);
    read = half_to_float(stored) * from_stored_;
    return (stored & 0x7fffu) < 0x7c00u;
  };
  if (!recipe_.integer_zero) {
    if (!half(0.5f * minimum + 0.5f * maximum, range.zero, range.stored[0])) return false;
    return half(std::max(maximum - range.zero, range.zero - minimum), range.scale, range.stored[1]);
  }
  const auto levels = static_cast<float>((1 << recipe_.bits) - 1);
  float step = 0.0f;
  if (!half(std::max(maximum - minimum, kLeastAtomRange) / levels, step, range.stored[0])) return false;
  // A step that fp16 rounds to 0 stands for values that are all about 0: every code is 0.
  const float point = step > 0.0f ? std::clamp(std::nearbyint(-minimum / step), 0.0f, levels) : 0.0f;
  range.zero_point = static_cast<std::uint8_t>(point);
  range.zero = (0.5f * levels - point) * step;
  range.scale = 0.5f * levels * step;
  return true;
}

void RangeFinder::keep(const Range& range, FoundRanges& found) const {
  found.stored.push_back(range.stored[0]);
  if (recipe_.integer_zero) {
    found.zero_point.push_back(range.zero_point);
  } else {
    found.stored.push_back(range.stored[1]);
  }
}

void RangeFinder::fail_range(std::span<const float> x, std::int64_t first_token, std::int64_t tokens, int first_channel,
                             int channels, float minimum, float maximum) const {
  const float largest = std::abs(minimum) > std::abs(maximum) ? minimum : maximum;
  std::int64_t at_token = first_token;
  int at_channel = first_channel;
  for (std::int64_t token = first_token; token < first_token + tokens; ++token) {
    for (int channel = first_channel; channel < first_channel + channels; ++channel) {
      if (x[static_cast<std::size_t>(token * width_ + channel)] == largest) at_token = token, at_channel = channel;
    }
  }
  throw ExactOverflow(at_token, at_channel, largest, kHalfMax * from_stored_);
}

void RangeFinder::mark_thresholds(std::span<const float> x, FoundRanges& found) const {
  const auto channels = static_cast<std::size_t>(width_);
  for (std::size_t token = 0; token < found.row.size(); ++token) {
    const auto row = x.subspan(token * channels, channels);
    const std::span<std::uint8_t> mask = std::span(found.exact).subspan(token * channels, channels);
    const int marked = loops_.mark_outside(row.data(), lower_.data(), upper_.data(), width_, mask.data());
    if (marked > cap_) keep_largest_excess(row, lower_, upper_, inverse_, cap_, mask);
  }
}

void RangeFinder::mark_tokens(std::span<const float> x, FoundRanges& found) const {
  const auto channels = static_cast<std::size_t>(width_);
  ExtremeSelector selector(loops_, width_);
  std::vector<float> x_hat(channels);
  for (std::size_t token = 0; token < found.row.size(); ++token) {
    std::span<const float> row = x.subspan(token * channels, channels);
    if (recipe_.range == RangeKind::Static) {
      loops_.normalise_channels(row.data(), zero_.data(), inverse_.data(), width_, x_hat.data());
      row = x_hat;
    }
    selector.select(row, per_end_, std::span(found.exact).subspan(token * channels, channels));
  }
}

/// One group of tokens; the k largest and smallest of every channel.
void RangeFinder::mark_columns(std::span<const float> x, std::int64_t tokens, std::span<std::uint8_t> exact) const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(tokens));
  for (int channel = 0; channel < width_; ++channel) {
    const auto at = [&](std::int64_t token) { return static_cast<std::size_t>(token * width_ + channel); };
    const auto mark = [&](auto before) {
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::erase_if(order, [&](std::int64_t token) { return exact[at(token)] != 0; });
      const auto end = order.begin() + std::min<std::ptrdiff_t>(per_end_, static_cast<std::ptrdiff_t>(order.size()));
      std::partial_sort(order.begin(), end, order.end(), before);
      for (auto token = order.begin(); token != end; ++token) exact[at(*token)] = 1;
      order.resize(static_cast<std::size_t>(tokens));
    };
    mark([&](std::int64_t a, std::int64_t b) { return x[at(a)] != x[at(b)] ? x[at(a)] > x[at(b)] : a < b; });
    mark([&](std::int64_t a, std::int64_t b) { return x[at(a)] != x[at(b)] ? x[at(a)] < x[at(b)] : a < b; });
  }
}

void RangeFinder::token_ranges(std::span<const float> x, FoundRanges& found) const {
  const int group = group_channels(recipe_, width_);
  for (std::size_t token = 0; token < found.row.size(); ++token) {
    found.row[token] = static_cast<std::int32_t>(token);
    for (int first = 0; first < width_; first += group) {
      const int channels = std::min(group, width_ - first);
      const std::size_t begin = token * static_cast<std::size_t>(width_) + static_cast<std::size_t>(first);
      Extremes extremes;
      for (std::size_t index = begin; index < begin + static_cast<std::size_t>(channels); ++index) {
        if (!found.exact[index]) extremes.add(x[index]);
      }
      Range range{0.0f, 0.0f};
      if (extremes.any() && !store(extremes.minimum, extremes.maximum, range)) {
        fail_range(x, static_cast<std::int64_t>(token), 1, first, channels, extremes.minimum, extremes.maximum);
      }
      keep(range, found);
      std::fill_n(found.zero.begin() + static_cast<std::ptrdiff_t>(begin), channels, range.zero);
      std::fill_n(found.scale.begin() + static_cast<std::ptrdiff_t>(begin), channels, range.scale);
      std::fill_n(found.inverse.begin() + static_cast<std::ptrdiff_t>(begin), channels, inverse_of(range.scale));
    }
  }
}

void RangeFinder::group_ranges(std::span<const float> x, std::int64_t first_position, FoundRanges& found) const {
  const auto channels = static_cast<std::size_t>(width_);
  const auto tokens = static_cast<std::int64_t>(found.row.size());
  const bool topk = recipe_.outliers > 0.0 && outlier_rule(recipe_) == OutlierRule::TopK;
  std::vector<Extremes> extremes(channels);
  std::int32_t row = 0;
  for (std::int64_t first = 0; first < tokens; ++row) {
    const std::int64_t count = std::min(recipe_.group - (first_position + first) % recipe_.group, tokens - first);
    const std::size_t begin = static_cast<std::size_t>(first) * channels;
    const std::size_t size = static_cast<std::size_t>(count) * channels;
    if (topk) mark_columns(x.subspan(begin, size), count, std::span(found.exact).subspan(begin, size));
    std::fill(extremes.begin(), extremes.end(), Extremes{});
    for (std::size_t index = begin; index < begin + size; ++index) {
      if (!found.exact[index]) extremes[(index - begin) % channels].add(x[index]);
    }
    for (std::size_t channel = 0; channel < channels; ++channel) {
      Range range{0.0f, 0.0f};
      const Extremes& seen = extremes[channel];
      if (seen.any() && !store(seen.minimum, seen.maximum, range))
        fail_range(x, first, count, static_cast<int>(channel), 1, seen.minimum, seen.maximum);
      keep(range, found);
      found.zero.push_back(range.zero);
      found.scale.push_back(range.scale);
      found.inverse.push_back(inverse_of(range.scale));
    }
    std::fill_n(found.row.begin() + first, count, row);
    first += count;
  }
}

void RangeFinder::find(std::span<const float> x, std::int64_t first_position, FoundRanges& found) const {
  const auto channels = static_cast<std::size_t>(width_);
  KVQ_ASSERT(x.size() % channels == 0);
  found.row.assign(x.size() / channels, 0);
  found.exact.assign(x.size(), 0);
  const bool by_group = recipe_.axis == Axis::ChannelGroup;
  if (recipe_.outliers > 0.0) {
    if (outlier_rule(recipe_) == OutlierRule::Threshold) {
      mark_thresholds(x, found);
    } else if (!by_group) {
      if (2 * per_end_ >= width_) {
        std::fill(found.exact.begin(), found.exact.end(), std::uint8_t{1});
      } else {
        mark_tokens(x, found);
      }
    }
  }
  found.zero.clear(), found.scale.clear(), found.inverse.clear();
  found.stored.clear(), found.zero_point.clear();
  if (recipe_.range == RangeKind::Static) {
    found.zero = zero_, found.scale = scale_, found.inverse = inverse_;
  } else if (by_group) {
    group_ranges(x, first_position, found);
  } else {
    for (std::vector<float>* field : {&found.zero, &found.scale, &found.inverse}) field->resize(x.size());
    token_ranges(x, found);
  }
  count_exact(found);
}

void RangeFinder::find_exact(std::span<const float> x, FoundRanges& found) const {
  KVQ_ASSERT(recipe_.axis == Axis::ChannelGroup && x.size() % static_cast<std::size_t>(width_) == 0);
  found.row.assign(x.size() / static_cast<std::size_t>(width_), 0);
  found.exact.assign(x.size(), 0);
  if (recipe_.outliers > 0.0) {
    KVQ_ASSERT(outlier_rule(recipe_) == OutlierRule::Threshold);
    mark_thresholds(x, found);
  }
  count_exact(found);
}

void RangeFinder::count_exact(FoundRanges& found) const {
  const auto channels = static_cast<std::size_t>(width_);
  found.exact_count.resize(found.row.size());
  for (std::size_t token = 0; token < found.row.size(); ++token) {
    const auto begin = found.exact.begin() + static_cast<std::ptrdiff_t>(token * channels);
    found.exact_count[token] =
        static_cast<std::uint32_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(channels), std::uint8_t{1}));
  }
}

}  // namespace kvq
