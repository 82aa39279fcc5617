#include <kvq/eval/distribution.h>

#include <algorithm>
#include <cmath>
#include <span>

#include <c10/core/InferenceMode.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/eval/perplexity.h>
#include <kvq/model/device.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/head_rotation.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

/// Zero and scale of each value of a token, as the encoder has them.
class Ranges {
 public:
  Ranges(const SideQuantizer& side, const EncodedTokens& encoded) : side_(side), encoded_(encoded) {
    for (std::size_t channel = 0; channel < side.lower.size(); ++channel) {
      zero_.push_back(0.5f * side.lower[channel] + 0.5f * side.upper[channel]);
      scale_.push_back(0.5f * side.upper[channel] - 0.5f * side.lower[channel]);
    }
  }
  double normalised(float x, std::size_t token, std::size_t channel) const {
    double zero = 0, scale = 0;
    if (side_.recipe.range == RangeKind::Static) {
      zero = zero_[channel];
      scale = scale_[channel];
    } else {
      const double unit = power_of_two(side_.exponent);
      zero = half_to_float(encoded_.token_range[2 * token]) * unit;
      scale = half_to_float(encoded_.token_range[2 * token + 1]) * unit;
    }
    return scale > 0 ? (x - zero) / scale : 0.0;
  }

 private:
  const SideQuantizer& side_;
  const EncodedTokens& encoded_;
  std::vector<float> zero_, scale_;
};

std::optional<SideDistribution> distribution_of(const SideQuantizer& side, std::span<const float> x) {
  const SideRecipe& recipe = side.recipe;
  if (!is_streaming(recipe) || recipe.range == RangeKind::Window || side.codebooks.empty() || x.empty())
    return std::nullopt;
  EncodedTokens encoded;
  try {
    SideEncoder(side).encode(x, encoded);
  } catch (const Error&) {
    return std::nullopt;  // a picture must not end an evaluation: nothing says that its cache met this value
  }
  SideDistribution result;
  result.counts.assign(kDistributionBins, 0);
  std::vector<float> rotated;
  if (recipe.rotation != Rotation::None) {  // ranges and levels are those of the rotated values
    rotated.assign(x.begin(), x.end());
    HeadRotation(side.rotation_scale, side.kv_heads, side.head_dim).forward(rotated);
    x = rotated;
  }
  const Ranges ranges(side, encoded);
  const auto width = static_cast<std::size_t>(side.width());
  for (std::size_t index = 0; index < x.size(); ++index) {
    const double place = ranges.normalised(x[index], index / width, index % width);
    const auto bin = static_cast<std::int64_t>(
        std::floor((place + kDistributionReach) * kDistributionBins / (2 * kDistributionReach)));
    if (bin < 0) {
      ++result.below;
    } else if (bin >= kDistributionBins) {
      ++result.above;
    } else {
      ++result.counts[static_cast<std::size_t>(bin)];
    }
  }
  for (const Codebook& codebook : side.codebooks) result.codebooks.push_back(codebook.centroids);
  result.outlier_rate = static_cast<double>(encoded.outliers()) / static_cast<double>(x.size());
  result.calibrated_outlier_rate = side.outlier_rate;
  return result;
}

class Watch final : public KvObserver {
 public:
  explicit Watch(const std::vector<NamedQuantizer>& quantizers) : quantizers_(quantizers) {
    for (const NamedQuantizer& named : quantizers) {
      tables_.emplace_back(named.quantizer ? named.quantizer->rope : ModelRope{});
      // The parts of one quantizer would all show the same, and so would the rows with other weights.
      result.emplace_back(named.quantizer && named.parts.all() && !named.model ? named.quantizer->layers.size() : 0);
    }
  }

  void observe(const AttentionInput& input) override {
    const at::Tensor value = host_floats(input.value), key = host_floats(input.key);
    for (std::size_t index = 0; index < quantizers_.size(); ++index) {
      if (result[index].empty()) continue;
      const Quantizer& quantizer = *quantizers_[index].quantizer;
      const LayerQuantizer& layer = quantizer.layers[static_cast<std::size_t>(input.layer)];
      for (const Side side : kSides) {
        at::Tensor x = side == Side::Key ? key : value;
        if (side == Side::Key && quantizer.recipe.key.post_rope)
          x = tables_[index].of(input.layer).apply(key, 0).contiguous();
        const std::int64_t sinks = std::min<std::int64_t>(quantizer.recipe.sinks, x.size(0)),
                           width = x.size(1) * x.size(2);
        const std::span<const float> all(x.const_data_ptr<float>(), static_cast<std::size_t>(x.size(0) * width));
        result[index][static_cast<std::size_t>(input.layer)].sides[static_cast<std::size_t>(side)] =
            distribution_of(layer.side(side), all.subspan(static_cast<std::size_t>(sinks * width)));
      }
    }
  }

  std::vector<std::vector<LayerDistribution>> result;

 private:
  const std::vector<NamedQuantizer>& quantizers_;
  std::vector<RopeTables> tables_;
};

}  // namespace

std::vector<std::vector<LayerDistribution>> observe_distributions(Model& model, const std::vector<std::int32_t>& ids,
                                                                  const std::vector<NamedQuantizer>& quantizers,
                                                                  RunContext& context) {
  Watch watch(quantizers);
  if (quantizers.empty()) return {};
  const c10::InferenceMode no_gradients;
  ExactAttention exact(model.config().kv, model.config().rope);
  const auto tokens =
      static_cast<std::ptrdiff_t>(std::min<std::int64_t>(kDistributionTokens, static_cast<std::int64_t>(ids.size())));
  at::Tensor hidden = model.embed({ids.begin(), ids.begin() + tokens});
  for (int layer = 0; layer < model.config().kv.layers; ++layer) {
    context.cancel.check();
    hidden = model.layer_forward(layer, hidden, 0, exact, &watch);
  }
  return std::move(watch.result);
}

}  // namespace kvq
