#include <kvq/fit/side_fitter.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include <kvq/fit/block_fisher.h>
#include <kvq/fit/feedback_fitter.h>
#include <kvq/fit/kmeans1d.h>
#include <kvq/fit/query_metric.h>
#include <kvq/fit/vector_fitter.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/pooled_range.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

void SideFitter::begin(const KvShape& shape, const RopeParams& rope, std::int64_t sequences, std::int64_t seqlen,
                       std::span<const float> x, std::span<const float> gradients, float exact_magnitude) {
  shape_ = shape;
  rotary_dim_ = rope.rotary_dim;
  block_sinks_ = -1;
  sample_ = {x, shape.width(), sequences, seqlen, 0};
  gradients_ = gradients;
  largest_ = {largest_magnitude(x, threads_), largest_magnitude(gradients, threads_)};
  exponent_ = choose_exponent(std::max(largest_.x, exact_magnitude));
  weighted_.key.reset();
  unweighted_.key.reset();
  metric_ = {};
  query_roots_.clear();
}

void SideFitter::set_metric(Side side, std::span<const double> metric, std::span<const float> mass) {
  metric_ = metric;
  query_roots_ = query_weight_roots(side, metric, mass, shape_, threads_);
  largest_root_ = largest_magnitude(query_roots_, threads_);
}

/// What normalised data and weights depend on.
SideFitter::Key SideFitter::key_of(SideRecipe recipe, FitWeights weights, int sinks) {
  recipe.codebook = CodebookKind::Int;
  if (!recipe.integer_zero) recipe.bits = 1;
  recipe.post_rope = recipe.qnorm = recipe.half_bit = false;
  recipe.levels = recipe.recent = recipe.flush = 0;
  recipe.widths = Widths::Flat;
  recipe.rotation = Rotation::None;  // begin() had the data turned
  recipe.rounding = {};
  recipe.turbo = {};
  recipe.vector = {};
  recipe.weights = weights;
  return {recipe, sinks};
}

TokenSample SideFitter::sequence_sample(std::int64_t sequence) const {
  const auto length = static_cast<std::size_t>(sample_.seqlen * sample_.width);
  TokenSample one = sample_;
  one.x = sample_.x.subspan(static_cast<std::size_t>(sequence) * length, length);
  one.sequences = 1;
  return one;
}

/// Calibrated range: of each channel, or pooled over those that share one.
ChannelRange SideFitter::range_of(const TokenSample& sample, const SideRecipe& recipe) const {
  if (recipe.axis == Axis::Channel) return channel_range(sample, recipe.outliers, threads_);
  std::vector<std::span<const float>> parts;
  const auto width = static_cast<std::size_t>(sample.width);
  for (std::int64_t sequence = 0; sequence < sample.sequences; ++sequence) {
    const auto first = static_cast<std::size_t>(sequence * sample.seqlen + sample.sinks);
    parts.push_back(sample.x.subspan(first * width, static_cast<std::size_t>(sample.seqlen - sample.sinks) * width));
  }
  PooledRange range =
      pooled_range(parts, sample.width, group_channels(recipe, sample.width), 0.5 * recipe.outliers, threads_);
  return {std::move(range.lower), std::move(range.upper)};
}

void SideFitter::set_ranges(SideQuantizer& quantizer, const ChannelThresholds* thresholds) {
  ranges_.clear();
  const SideRecipe& recipe = quantizer.recipe;
  if (recipe.range == RangeKind::Window) {
    // Each sequence of the calibration stands for a window.
    for (std::int64_t sequence = 0; sequence < sample_.sequences; ++sequence)
      ranges_.push_back(range_of(sequence_sample(sequence), recipe));
    return;
  }
  if (!stores_thresholds(recipe)) return;
  ranges_.push_back(thresholds != nullptr ? ChannelRange{thresholds->lower, thresholds->upper}
                                          : range_of(sample_, recipe));
  quantizer.lower = ranges_[0].lower;
  quantizer.upper = ranges_[0].upper;
}

double SideFitter::outlier_rate(const SideRecipe& recipe) const {
  if (recipe.outliers == 0) return 0;
  if (outlier_rule(recipe) == OutlierRule::TopK) {
    const int values = recipe.axis == Axis::ChannelGroup ? recipe.group : sample_.width;
    return std::min(1.0, 2.0 * outliers_per_end(recipe.outliers, values) / values);
  }
  if (ranges_.size() == 1) return outside_rate(sample_, ranges_[0], outlier_cap(recipe.cap, sample_.width), threads_);
  double sum = 0;
  for (std::size_t sequence = 0; sequence < ranges_.size(); ++sequence) {
    sum +=
        outside_rate(sequence_sample(static_cast<std::int64_t>(sequence)), ranges_[sequence], sample_.width, threads_);
  }
  return sum / static_cast<double>(ranges_.size());
}

const NormalisedData& SideFitter::normalised(const SideQuantizer& quantizer, FitWeights weights) {
  const Key key = key_of(quantizer.recipe, weights, sample_.sinks);
  Cached& cached = weights == FitWeights::None ? unweighted_ : weighted_;
  if (cached.key != key) {
    const bool query = weights == FitWeights::Query;
    LargestMagnitudes largest = largest_;
    if (query) largest.gradient = largest_root_;
    cached.data.compute(sample_, query ? std::span<const float>(query_roots_) : gradients_, quantizer, ranges_, weights,
                        largest, threads_);
    cached.key = key;
  }
  return cached.data;
}

std::span<const double> SideFitter::blocks(RoundingMetric metric) {
  if (metric == RoundingMetric::Query) return metric_;
  if (block_sinks_ != sample_.sinks) {
    blocks_ = gradient_blocks(sample_, gradients_, shape_.head_dim, threads_);
    block_sinks_ = sample_.sinks;
  }
  return blocks_;
}

/// The recipe's own weights, or none where they are all zero.
const NormalisedData& SideFitter::weighted_data(const SideQuantizer& quantizer, int segment, bool& fell_back) {
  // Codebooks that are not fitted do without weights where a file has no gradients: they only measure the error.
  const bool none =
      !needs_gradients(quantizer.recipe) && gradients_.empty() && quantizer.recipe.weights != FitWeights::Query;
  const FitWeights weights = none ? FitWeights::None : quantizer.recipe.weights;
  const NormalisedData& data = normalised(quantizer, weights);
  if (data.weighted(segment) || weights == FitWeights::None) return data;
  const NormalisedData& each = normalised(quantizer, FitWeights::None);
  fell_back |= each.weighted(segment);
  return each;
}

Codebook SideFitter::fit_codebook(const SideQuantizer& quantizer, int segment, CodebookError& error, bool& fell_back) {
  const SideRecipe& recipe = quantizer.recipe;
  const NormalisedData* data = &weighted_data(quantizer, segment, fell_back);
  const int levels = code_levels(recipe);
  Codebook codebook = recipe.codebook == CodebookKind::Nf ? normal_float_codebook(recipe.bits) : uniform_levels(levels);
  if (!data->weighted(segment)) return codebook;
  if (recipe.codebook == CodebookKind::Nuq) {
    const KMeans1dResult result = kmeans1d(data->values(segment), data->weights(segment), levels, threads_);
    codebook.centroids.assign(result.centroids.begin(), result.centroids.end());
    codebook.decoded = codebook.centroids;
    if (!recipe.qnorm) {
      error.error += result.error;
      error.weight += result.weight;
      return codebook;
    }
    const NormalisedData& each = normalised(quantizer, FitWeights::None);
    apply_qnorm(codebook, each.values(segment), each.weights(segment), threads_);
  }
  const CodebookError added = codebook_error(codebook, data->values(segment), data->weights(segment), threads_);
  error.error += added.error;
  error.weight += added.weight;
  return codebook;
}

/// Needs no data but the exponent, which norms must fit too, and the channels of most energy.
void SideFitter::fit_turbo(SideQuantizer& quantizer) {
  const SideRecipe& recipe = quantizer.recipe;
  const auto known = std::find_if(turbo_.begin(), turbo_.end(), [&](const auto& entry) {
    return entry.first.bits == recipe.bits && entry.first.turbo == recipe.turbo &&
           entry.second->dim() == quantizer.head_dim;
  });
  if (known != turbo_.end()) {
    quantizer.turbo = known->second;
  } else {
    quantizer.turbo =
        std::make_shared<const TurboTables>(make_turbo_tables(recipe.turbo, recipe.bits, quantizer.head_dim));
    turbo_.emplace_back(recipe, quantizer.turbo);
  }
  const auto dim = static_cast<std::size_t>(quantizer.head_dim);
  double largest = 0;  // also of sinks: recent tokens and sinks have the same exponent
  for (std::size_t first = 0; first < sample_.x.size(); first += dim) {
    double square = 0;
    for (const float value : sample_.x.subspan(first, dim)) square += static_cast<double>(value) * value;
    largest = std::max(largest, square);
  }
  quantizer.exponent = choose_exponent(std::max(largest_.x, static_cast<float>(std::sqrt(largest))));
  if (recipe.turbo.outlier_channels == 0) return;
  std::vector<double> energy(static_cast<std::size_t>(sample_.width));
  for (std::int64_t token = 0; token < sample_.tokens(); ++token) {
    if (!sample_.counts(token)) continue;
    const float* row = sample_.x.data() + token * sample_.width;
    for (std::size_t channel = 0; channel < energy.size(); ++channel)
      energy[channel] += static_cast<double>(row[channel]) * row[channel];
  }
  for (std::size_t head = 0; head < energy.size(); head += dim) {
    std::vector<std::int32_t> order(dim);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return energy[head + static_cast<std::size_t>(a)] > energy[head + static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(recipe.turbo.outlier_channels));
    std::sort(order.begin(), order.end());
    quantizer.outlier_channels.insert(quantizer.outlier_channels.end(), order.begin(), order.end());
  }
}

SideFitter::Result SideFitter::fit(const SideRecipe& recipe, int sinks, const ChannelThresholds* thresholds) {
  sample_.sinks = sinks;
  Result result;
  SideQuantizer& quantizer = result.quantizer;
  quantizer.recipe = recipe;
  quantizer.kv_heads = shape_.kv_heads;
  quantizer.head_dim = shape_.head_dim;
  quantizer.exponent = exponent_;
  if (recipe.codebook == CodebookKind::Turbo) fit_turbo(quantizer);
  if (recipe.codebook == CodebookKind::Vector) {
    std::span<const float> roots;
    if (needs_gradients(recipe)) roots = gradients_;
    if (recipe.weights == FitWeights::Query) roots = query_roots_;
    fit_vector_tables(quantizer, sample_, roots, threads_, result.fell_back);
  }
  set_ranges(quantizer, thresholds);
  quantizer.outlier_rate = outlier_rate(recipe);
  if (has_own_format(recipe.codebook)) {
    result.error = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  CodebookError error;
  std::vector<double> costs;
  if (needs_blocks(recipe)) costs = fit_feedback(quantizer, blocks(recipe.rounding.metric), result.fell_back);
  if (recipe.widths == Widths::Pair) {
    const NormalisedData& data = weighted_data(quantizer, 0, result.fell_back);
    error = fit_pair_widths(quantizer, data, costs, rotary_dim_, threads_);
    result.error = error.weight > 0 ? error.error / error.weight : 0;
    return result;
  }
  const int segments = codebook_count(recipe, shape_.kv_heads, shape_.head_dim);
  for (int segment = 0; segment < segments; ++segment)
    quantizer.codebooks.push_back(fit_codebook(quantizer, segment, error, result.fell_back));
  result.error = error.weight > 0 ? error.error / error.weight : 0;
  return result;
}

}  // namespace kvq
