#include <kvq/fit/feedback_fitter.h>

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/fit/block_fisher.h>
#include <kvq/fit/kmeans1d.h>
#include <kvq/fit/pair_widths.h>

namespace kvq {

namespace {

/// Half-widths s_j of the channels' ranges; 1 where ranges are online.
std::vector<double> channel_scales(const SideQuantizer& quantizer) {
  std::vector<double> scales(static_cast<std::size_t>(quantizer.width()), 1.0);
  for (std::size_t channel = 0; channel < quantizer.lower.size(); ++channel)
    scales[channel] = 0.5 * quantizer.upper[channel] - 0.5 * quantizer.lower[channel];
  return scales;
}

Codebook codebook_of(const KMeans1dResult& result) {
  Codebook codebook;
  codebook.centroids.assign(result.centroids.begin(), result.centroids.end());
  codebook.decoded = codebook.centroids;
  return codebook;
}

/// The columns of `data` (one segment of rows of `width`) that `wanted` marks.
struct Columns {
  std::vector<float> values, weights;
  bool weighted = false;

  Columns(const NormalisedData& data, std::span<const std::uint8_t> wanted) {
    const std::span<const float> all_values = data.values(0), all_weights = data.weights(0);
    for (std::size_t row = 0; row < all_values.size(); row += wanted.size()) {
      for (std::size_t channel = 0; channel < wanted.size(); ++channel) {
        if (wanted[channel] == 0) continue;
        values.push_back(all_values[row + channel]);
        weights.push_back(all_weights[row + channel]);
        weighted |= weights.back() > 0;
      }
    }
  }
};

}  // namespace

std::vector<double> fit_feedback(SideQuantizer& quantizer, std::span<const double> blocks, bool& fell_back) {
  const auto dim = static_cast<std::size_t>(quantizer.head_dim);
  const RoundingRecipe& rounding = quantizer.recipe.rounding;
  const std::vector<double> scales = channel_scales(quantizer);
  FeedbackTables& tables = quantizer.feedback;
  std::vector<double> costs;
  for (int kv_head = 0; kv_head < quantizer.kv_heads; ++kv_head) {
    const auto head = static_cast<std::size_t>(kv_head);
    BlockFactor factor;
    try {
      factor = factor_block(blocks.subspan(head * dim * dim, dim * dim), std::span(scales).subspan(head * dim, dim),
                            rounding.order, rounding.damp);
    } catch (const Error& error) {
      fail(error.kind(), fmt::format("kv head {}: {}", kv_head, error.what()));
    }
    fell_back |= factor.plain;
    if (rounding.uses_blocks()) tables.order.insert(tables.order.end(), factor.order.begin(), factor.order.end());
    if (rounding.feedback) tables.updates.insert(tables.updates.end(), factor.updates.begin(), factor.updates.end());
    if (rounding.icm > 0) tables.hessian.insert(tables.hessian.end(), factor.hessian.begin(), factor.hessian.end());
    for (std::size_t channel = 0; channel < dim; ++channel)
      costs.push_back(rounding.feedback ? factor.pivots[channel] : factor.hessian[channel * dim + channel]);
  }
  return costs;
}

CodebookError fit_pair_widths(SideQuantizer& quantizer, const NormalisedData& data, std::span<const double> costs,
                              int rotary_dim, int threads) {
  const int dim = quantizer.head_dim;
  const std::vector<int> choices = width_choices(quantizer.recipe);
  const std::vector<double> scales = channel_scales(quantizer);
  const bool anything = data.weighted(0);
  std::vector<double> distortion;
  for (const int bits : choices) {
    const KMeans1dResult result =
        anything ? kmeans1d(data.values(0), data.weights(0), 1 << bits, threads) : KMeans1dResult{};
    distortion.push_back(result.weight > 0 ? result.error / result.weight : 0.0);
  }

  const auto pairs = channel_pairs(dim, rotary_dim);
  quantizer.widths.assign(static_cast<std::size_t>(quantizer.width()), 0);
  for (int first = 0; first < quantizer.width(); first += dim) {
    const auto cost = [&](int channel) {
      const auto index = static_cast<std::size_t>(first + channel);
      return costs[index] * scales[index] * scales[index];
    };
    std::vector<double> pair_costs;
    for (const auto& [a, b] : pairs) pair_costs.push_back(cost(a) + cost(b));
    const std::vector<int> widths =
        allocate_widths(pair_costs, choices, distortion, head_vector_bits(quantizer.recipe, dim) / 2);
    for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
      quantizer.widths[static_cast<std::size_t>(first + pairs[pair].first)] = widths[pair];
      quantizer.widths[static_cast<std::size_t>(first + pairs[pair].second)] = widths[pair];
    }
  }

  CodebookError error;
  for (const int bits : choices) {
    std::vector<std::uint8_t> wanted;
    for (const std::int32_t width : quantizer.widths) wanted.push_back(width == bits ? 1 : 0);
    const Columns columns(data, wanted);
    if (!columns.weighted) {  // nothing has this width, or only constants
      quantizer.codebooks.push_back(uniform_levels(1 << bits));
      continue;
    }
    const KMeans1dResult result = kmeans1d(columns.values, columns.weights, 1 << bits, threads);
    error.error += result.error;
    error.weight += result.weight;
    quantizer.codebooks.push_back(codebook_of(result));
  }
  return error;
}

}  // namespace kvq
