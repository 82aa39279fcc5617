#include <kvq/eval/context_plan.h>

#include <algorithm>

#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

Quantizer uncalibrated_quantizer(const Recipe& recipe, const KvShape& shape) {
  check_shape(recipe, shape.kv_heads, shape.head_dim);
  Quantizer quantizer{recipe, shape, {}, {}};
  if (!recipe.quantized) return quantizer;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = recipe.side(which);
    side.kv_heads = shape.kv_heads;
    side.head_dim = shape.head_dim;
    side.outlier_rate = side.recipe.outliers;
    for (const int bits : lower_tier_bits(recipe.tiers)) side.lower_tiers.push_back({bits, {}});
  }
  quantizer.layers.assign(static_cast<std::size_t>(shape.layers), layer);
  return quantizer;
}

std::int64_t longest_context(const Quantizer& quantizer, std::int64_t bytes, std::int64_t batch) {
  const std::int64_t each = bytes / batch;
  const auto fits = [&](std::int64_t tokens) { return forecast_footprint(quantizer, tokens).total() <= each; };
  // A cache takes more with every token but for whole pages, so that the first length that does not fit ends it.
  std::int64_t low = 0, high = 1;
  while (high < kLongestContext && fits(high)) {
    low = high;
    high *= 2;
  }
  if (high >= kLongestContext) return kLongestContext;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace kvq
