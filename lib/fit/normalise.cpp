#include <kvq/fit/normalise.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

constexpr std::int64_t kNormaliseTokens = 64;

/// Per channel: where and how wide the range is, and by what a gradient is multiplied before squaring.
struct ChannelTables {
  std::vector<float> lower, upper, zero, inverse, factor;

  ChannelTables(const ChannelRange& range, float scale_unit, float gradient_unit)
      : lower(range.lower), upper(range.upper) {
    for (std::size_t channel = 0; channel < lower.size(); ++channel) {
      const auto [own_zero, scale] = channel_affine(lower[channel], upper[channel]);
      zero.push_back(own_zero);
      inverse.push_back(inverse_of(scale));
      factor.push_back((scale_unit > 0 ? scale * scale_unit : 1.0f) * gradient_unit);
      if (inverse.back() == 0) upper[channel] = -(lower[channel] = INFINITY);  // constant: nothing is inside
    }
  }
};

/// One row of one segment. Returns the OR of the bits of all weights: nonzero when any weight is.
std::uint32_t channel_row(const float* x, const float* gradient, const ChannelTables& tables, std::int64_t first,
                          std::int64_t count, float* x_hat, float* weights) {
  const float *lower = tables.lower.data() + first, *upper = tables.upper.data() + first;
  const float *zero = tables.zero.data() + first, *inverse = tables.inverse.data() + first;
  const float* factor = tables.factor.data() + first;
  std::uint32_t any = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float root = gradient ? gradient[i] * factor[i] : 1.0f;
    const bool inside = (x[i] >= lower[i]) & (x[i] <= upper[i]);
    const std::uint32_t mask = inside ? 0xffffffffu : 0u;
    const std::uint32_t weight = std::bit_cast<std::uint32_t>(root * root) & mask;
    // Outliers become 0 as well: beyond a narrow range they could overflow.
    x_hat[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>((x[i] - zero[i]) * inverse[i]) & mask);
    weights[i] = std::bit_cast<float>(weight);
    any |= weight;
  }
  return any;
}

std::uint32_t token_row(const float* x, const float* gradient, float zero, float inverse, float factor,
                        std::int64_t count, float* x_hat, float* weights) {
  std::uint32_t any = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float root = gradient ? gradient[i] * factor : 1.0f;
    x_hat[i] = (x[i] - zero) * inverse;
    weights[i] = root * root;
    any |= std::bit_cast<std::uint32_t>(weights[i]);
  }
  return any;
}

/// An encoder whose codes do not matter: only ranges and outliers of the token axis are wanted.
SideEncoder range_finder(SideQuantizer quantizer) {
  quantizer.recipe.bits = 1;
  quantizer.recipe.levels = 0;
  quantizer.recipe.rotation = Rotation::None;  // the data are rotated already
  quantizer.recipe.rounding = {};
  quantizer.recipe.share = Share::Layer;
  quantizer.codebooks = {uniform_codebook(1)};
  return SideEncoder(quantizer);
}

}  // namespace

void NormalisedData::compute(const TokenSample& sample, std::span<const float> gradients,
                             const SideQuantizer& quantizer, std::span<const ChannelRange> ranges, FitWeights weights,
                             const LargestMagnitudes& largest, int threads) {
  const bool unweighted = weights == FitWeights::None;
  KVQ_ASSERT(unweighted || gradients.size() == sample.x.size());
  const std::int64_t tokens = sample.tokens(), width = sample.width;
  const int segment_count = codebook_count(quantizer.recipe, quantizer.kv_heads, quantizer.head_dim);
  const std::int64_t segment_width = width / segment_count;
  values_.resize(sample.x.size());
  weights_.resize(sample.x.size());
  weighted_.assign(segment_count, 0);
  // Squares of small gradients and scales would leave fp32's range: bring the largest of each to 1 first.
  const bool scaled = weights == FitWeights::Fisher || weights == FitWeights::Query;
  const float gradient_unit = unweighted ? 1.0f : inverse_of(largest.gradient);
  const float scale_unit = scaled ? inverse_of(largest.x) : 0.0f;  // 0: weights without s²
  if (!is_streaming(quantizer.recipe))
    return compute_found(sample, unweighted ? std::span<const float>() : gradients, quantizer, ranges, scale_unit,
                         gradient_unit, threads);
  const bool per_token = quantizer.recipe.range == RangeKind::Online;

  std::vector<ChannelTables> tables;
  for (const ChannelRange& range : ranges) tables.emplace_back(range, scale_unit, gradient_unit);
  KVQ_ASSERT(per_token || tables.size() == 1 || static_cast<std::int64_t>(tables.size()) == sample.sequences);
  std::vector<SideEncoder> finder;
  if (per_token) finder.push_back(range_finder(quantizer));
  const float from_stored = power_of_two(quantizer.exponent);
  const bool all_exact = per_token && 2 * outliers_per_end(quantizer.recipe.outliers, sample.width) >= width;

  std::vector<std::atomic<std::uint8_t>> found(segment_count);
  parallel_ranges(tokens, kNormaliseTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    EncodedTokens encoded;
    if (per_token) finder[0].encode(sample.x.subspan(begin * width, (end - begin) * width), encoded);
    for (std::int64_t token = begin; token < end; ++token) {
      const bool counts = sample.counts(token) && !all_exact;
      for (int segment = 0; segment < segment_count; ++segment) {
        const std::int64_t from = token * width + segment * segment_width;
        const std::int64_t to = (segment * tokens + token) * segment_width;
        float *x_hat = values_.data() + to, *weight = weights_.data() + to;
        if (!counts) {
          std::fill_n(x_hat, segment_width, 0.0f);
          std::fill_n(weight, segment_width, 0.0f);
          continue;
        }
        const float* x = sample.x.data() + from;
        const float* gradient = unweighted ? nullptr : gradients.data() + from;
        std::uint32_t any = 0;
        if (per_token) {
          const std::int64_t row = token - begin;
          const float zero = half_to_float(encoded.token_range[2 * row]) * from_stored;
          const float scale = half_to_float(encoded.token_range[2 * row + 1]) * from_stored;
          const float inverse = inverse_of(scale);
          const float factor = (scale_unit > 0 ? scale * scale_unit : 1.0f) * gradient_unit;
          any = token_row(x, gradient, zero, inverse, factor, segment_width, x_hat, weight);
          const std::int64_t first = segment * segment_width;
          for (std::uint32_t entry = encoded.outlier_begin[row]; entry < encoded.outlier_begin[row + 1]; ++entry) {
            const std::int64_t channel = encoded.outlier_channel[entry] - first;
            if (channel >= 0 && channel < segment_width) x_hat[channel] = weight[channel] = 0;
          }
          if (inverse == 0) std::fill_n(weight, segment_width, 0.0f);
          // Outliers may have been all that had weight: look again, which is rare enough to be cheap.
          if (any != 0 && found[segment].load(std::memory_order_relaxed) == 0)
            any = std::any_of(weight, weight + segment_width, [](float w) { return w > 0; }) ? 1 : 0;
        } else {
          const ChannelTables& table = tables[tables.size() == 1 ? 0 : token / sample.seqlen];
          any = channel_row(x, gradient, table, segment * segment_width, segment_width, x_hat, weight);
        }
        if (any != 0) found[segment].store(1, std::memory_order_relaxed);
      }
    }
  });
  for (int segment = 0; segment < segment_count; ++segment) weighted_[segment] = found[segment].load();
}

}  // namespace kvq
