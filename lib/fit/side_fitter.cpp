#include <kvq/fit/side_fitter.h>

#include <algorithm>
#include <cstddef>

#include <kvq/fit/block_fisher.h>
#include <kvq/fit/feedback_fitter.h>
#include <kvq/fit/kmeans1d.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/scaled_half.h>

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
}

void SideFitter::set_ranges(SideQuantizer& quantizer, const ChannelThresholds* thresholds) {
  ranges_.clear();
  const SideRecipe& recipe = quantizer.recipe;
  if (recipe.axis == Axis::Token) return;
  if (recipe.range == RangeKind::Window) {
    // Each sequence of the calibration stands for a window.
    for (std::int64_t sequence = 0; sequence < sample_.sequences; ++sequence) {
      const std::size_t length = static_cast<std::size_t>(sample_.seqlen * sample_.width);
      TokenSample window = sample_;
      window.x = sample_.x.subspan(sequence * length, length);
      window.sequences = 1;
      ranges_.push_back(channel_range(window, recipe.outliers, threads_));
    }
    return;
  }
  ranges_.push_back(thresholds != nullptr ? ChannelRange{thresholds->lower, thresholds->upper}
                                          : channel_range(sample_, 0, threads_));
  quantizer.lower = ranges_[0].lower;
  quantizer.upper = ranges_[0].upper;
}

double SideFitter::outlier_rate(const SideRecipe& recipe) const {
  if (recipe.outliers == 0) return 0;
  if (recipe.axis == Axis::Token)
    return std::min(1.0, 2.0 * outliers_per_end(recipe.outliers, sample_.width) / sample_.width);
  if (ranges_.size() == 1) return outside_rate(sample_, ranges_[0], outlier_cap(recipe.cap, sample_.width), threads_);
  double sum = 0;
  for (std::size_t sequence = 0; sequence < ranges_.size(); ++sequence) {
    const std::size_t length = static_cast<std::size_t>(sample_.seqlen * sample_.width);
    TokenSample window = sample_;
    window.x = sample_.x.subspan(sequence * length, length);
    window.sequences = 1;
    sum += outside_rate(window, ranges_[sequence], sample_.width, threads_);
  }
  return sum / static_cast<double>(ranges_.size());
}

const NormalisedData& SideFitter::normalised(const SideQuantizer& quantizer, FitWeights weights) {
  const SideRecipe& recipe = quantizer.recipe;
  const Key key = {recipe.axis, recipe.range, recipe.outliers, weights, recipe.share, sample_.sinks};
  Cached& cached = weights == FitWeights::None ? unweighted_ : weighted_;
  if (cached.key != key) {
    cached.data.compute(sample_, gradients_, quantizer, ranges_, weights, largest_, threads_);
    cached.key = key;
  }
  return cached.data;
}

std::span<const double> SideFitter::blocks() {
  if (block_sinks_ != sample_.sinks) {
    blocks_ = gradient_blocks(sample_, gradients_, shape_.head_dim, threads_);
    block_sinks_ = sample_.sinks;
  }
  return blocks_;
}

/// The recipe's own weights, or none where they are all zero.
const NormalisedData& SideFitter::weighted_data(const SideQuantizer& quantizer, int segment, bool& fell_back) {
  const FitWeights weights = quantizer.recipe.weights;
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

SideFitter::Result SideFitter::fit(const SideRecipe& recipe, int sinks, const ChannelThresholds* thresholds) {
  sample_.sinks = sinks;
  Result result;
  SideQuantizer& quantizer = result.quantizer;
  quantizer.recipe = recipe;
  quantizer.kv_heads = shape_.kv_heads;
  quantizer.head_dim = shape_.head_dim;
  quantizer.exponent = exponent_;
  set_ranges(quantizer, thresholds);
  quantizer.outlier_rate = outlier_rate(recipe);
  CodebookError error;
  std::vector<double> costs;
  if (needs_blocks(recipe)) costs = fit_feedback(quantizer, blocks(), result.fell_back);
  if (recipe.widths == Widths::Pair) {
    const NormalisedData& data = weighted_data(quantizer, 0, result.fell_back);
    error = fit_pair_widths(quantizer, data, costs, rotary_dim_, threads_);
    result.error = error.weight > 0 ? error.error / error.weight : 0;
    return result;
  }
  const int segments = recipe.share == Share::Head ? shape_.kv_heads : 1;
  for (int segment = 0; segment < segments; ++segment)
    quantizer.codebooks.push_back(fit_codebook(quantizer, segment, error, result.fell_back));
  result.error = error.weight > 0 ? error.error / error.weight : 0;
  return result;
}

}  // namespace kvq
