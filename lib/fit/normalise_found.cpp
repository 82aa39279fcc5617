#include <algorithm>
#include <atomic>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/fit/normalise.h>
#include <kvq/quant/range_finder.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

/// One for all tokens, or one per sequence (range=window).
std::vector<RangeFinder> range_finders(const SideQuantizer& quantizer, std::span<const ChannelRange> ranges) {
  std::vector<RangeFinder> finders;
  if (quantizer.recipe.range != RangeKind::Window) {
    finders.emplace_back(quantizer);
    return finders;
  }
  SideQuantizer fixed = quantizer;
  fixed.recipe.range = RangeKind::Static;
  for (const ChannelRange& range : ranges) {
    fixed.lower = range.lower, fixed.upper = range.upper;
    finders.emplace_back(fixed);
  }
  return finders;
}

}  // namespace

void NormalisedData::compute_found(const TokenSample& sample, std::span<const float> gradients,
                                   const SideQuantizer& quantizer, std::span<const ChannelRange> ranges,
                                   float scale_unit, float gradient_unit, int threads) {
  const std::vector<RangeFinder> finders = range_finders(quantizer, ranges);
  const std::int64_t tokens = sample.tokens(), width = sample.width;
  const auto segments = static_cast<std::int64_t>(weighted_.size());
  const std::int64_t segment_width = width / segments;
  std::fill(values_.begin(), values_.end(), 0.0f);
  std::fill(weights_.begin(), weights_.end(), 0.0f);
  const SideRecipe& recipe = quantizer.recipe;
  const std::int64_t end =
      recipe.axis == Axis::ChannelGroup ? sample.seqlen - sample.seqlen % recipe.group : sample.seqlen;
  const std::int64_t unit = finders[0].unit_tokens(), units = (end + unit - 1) / unit;
  std::vector<std::atomic<std::uint8_t>> any(static_cast<std::size_t>(segments));
  parallel_for(sample.sequences * units, threads, [&](std::int64_t index) {
    const std::int64_t sequence = index / units;
    const std::int64_t begin = std::max<std::int64_t>(index % units * unit, sample.sinks);
    const std::int64_t stop = std::min((index % units + 1) * unit, end);
    if (begin >= stop) return;
    const std::int64_t first = sequence * sample.seqlen + begin;
    FoundRanges found;
    finders[finders.size() == 1 ? 0 : static_cast<std::size_t>(sequence)].find(
        sample.x.subspan(static_cast<std::size_t>(first * width), static_cast<std::size_t>((stop - begin) * width)),
        begin, found);
    for (std::int64_t token = first; token < first + stop - begin; ++token) {
      const auto local = static_cast<std::size_t>(token - first);
      const std::size_t row = static_cast<std::size_t>(found.row[local]) * static_cast<std::size_t>(width);
      for (std::int64_t channel = 0; channel < width; ++channel) {
        const std::size_t range = row + static_cast<std::size_t>(channel);
        if (found.exact[local * static_cast<std::size_t>(width) + static_cast<std::size_t>(channel)] != 0 ||
            found.inverse[range] == 0.0f)
          continue;
        const auto from = static_cast<std::size_t>(token * width + channel);
        const std::int64_t segment = channel / segment_width;
        const auto to = static_cast<std::size_t>((segment * tokens + token) * segment_width + channel % segment_width);
        const float factor = (scale_unit > 0.0f ? found.scale[range] * scale_unit : 1.0f) * gradient_unit;
        const float root = gradients.empty() ? 1.0f : gradients[from] * factor;
        values_[to] = (sample.x[from] - found.zero[range]) * found.inverse[range];
        weights_[to] = root * root;
        if (weights_[to] > 0.0f) any[static_cast<std::size_t>(segment)].store(1, std::memory_order_relaxed);
      }
    }
  });
  for (std::size_t segment = 0; segment < any.size(); ++segment) weighted_[segment] = any[segment].load();
}

}  // namespace kvq
