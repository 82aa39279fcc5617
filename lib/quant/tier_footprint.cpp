#include <kvq/quant/tier_footprint.h>

#include <algorithm>

#include <kvq/core/error.h>
#include <kvq/quant/page_footprint.h>

namespace kvq {

namespace {

constexpr std::int64_t kPlaceBytes = 4, kHeldWeightBytes = 4;

LayerQuantizer tier_of(const LayerQuantizer& layer, int tier) {
  return {tier_side(layer.key, tier), tier_side(layer.value, tier)};
}

void add_tier_list(Footprint& sum, const TierRecipe& tiers, int tier, const layout::PageLayout& page,
                   std::int64_t tokens) {
  add_list(sum, page, tokens, 0);
  sum.selection += tokens * (kPlaceBytes + (tier_moves(tiers, tier) ? kHeldWeightBytes : 0));
}

void add_sinks(Footprint& sum, const Quantizer& quantizer, std::int64_t tokens) {
  const std::int64_t sinks = std::min<std::int64_t>(quantizer.recipe.sinks, tokens);
  sum.exact += quantizer.shape.layers * sinks * 2 * quantizer.shape.width() * layout::kHalfBytes;
}

}  // namespace

int tier_lists(const Quantizer& quantizer) { return quantizer.recipe.tiers.per_head ? quantizer.shape.kv_heads : 1; }

Footprint tier_footprint(const Quantizer& quantizer, std::int64_t tokens, const std::vector<TierTokens>& tiers,
                         const OutliersPerToken& outliers) {
  const int lists = tier_lists(quantizer);
  const auto of_layer = static_cast<std::size_t>(tokens * lists);
  KVQ_ASSERT(tiers.size() == quantizer.layers.size());
  Footprint sum;
  add_sinks(sum, quantizer, tokens);
  for (std::size_t layer = 0; layer < tiers.size(); ++layer) {
    for (std::size_t tier = 0; tier < tiers[layer].size(); ++tier) {
      const auto number = static_cast<int>(tier);
      const layout::PageLayout page = list_page(tier_of(quantizer.layers[layer], number), lists);
      KVQ_ASSERT(tiers[layer][tier].size() == static_cast<std::size_t>(lists));
      for (int list = 0; list < lists; ++list) {
        const std::vector<std::int64_t>& positions = tiers[layer][tier][static_cast<std::size_t>(list)];
        add_tier_list(sum, quantizer.recipe.tiers, number, page, static_cast<std::int64_t>(positions.size()));
        const std::size_t begin = layer * of_layer;
        sum.outliers +=
            list_overflow_bytes(page.key, positions, list, lists, outliers.key.subspan(begin, of_layer)) +
            list_overflow_bytes(page.value, positions, list, lists, outliers.value.subspan(begin, of_layer));
      }
    }
  }
  return sum;
}

Footprint forecast_tier_footprint(const Quantizer& quantizer, std::int64_t tokens) {
  const int lists = tier_lists(quantizer);
  const std::int64_t coded = std::max<std::int64_t>(tokens - quantizer.recipe.sinks, 0);
  const std::vector<std::int64_t> limits = tier_limits(quantizer.recipe.tiers, coded);
  Footprint sum;
  add_sinks(sum, quantizer, tokens);
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (std::size_t tier = 0; tier < limits.size(); ++tier) {
      const std::int64_t count = limits[tier] - (tier > 0 ? limits[tier - 1] : 0);
      const LayerQuantizer sides = tier_of(layer, static_cast<int>(tier));
      const layout::PageLayout page = list_page(sides, lists);
      for (int list = 0; list < lists; ++list) {
        add_tier_list(sum, quantizer.recipe.tiers, static_cast<int>(tier), page, count);
        sum.outliers += expected_overflow_bytes(list_outlier_rate(sides.key), page.key, count) +
                        expected_overflow_bytes(list_outlier_rate(sides.value), page.value, count);
      }
    }
  }
  return sum;
}

}  // namespace kvq
