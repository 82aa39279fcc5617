#include <kvq/quant/eviction_footprint.h>

#include <algorithm>

#include <kvq/core/error.h>
#include <kvq/quant/page_footprint.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_shape.h>

namespace kvq {

namespace {

constexpr std::int64_t kPositionBytes = 4, kWeightBytes = 4;

/// Most groups of channels that lie, at least in part, in one head.
int ranges_of_head(const SideQuantizer& side) {
  if (has_own_format(side.recipe.codebook)) return side_shape(side).ranges / side.kv_heads;
  const int group = group_channels(side.recipe, side.width());
  int most = 1;
  for (int head = 0; head < side.kv_heads; ++head) {
    const int first = head * side.head_dim, last = first + side.head_dim - 1;
    most = std::max(most, last / group - first / group + 1);
  }
  return most;
}

/// A side as one kv head keeps it.
layout::SideShape head_shape(const SideQuantizer& side) {
  layout::SideShape shape = side_shape(side);
  shape.kv_heads = 1;
  if (shape.token_ranges) shape.ranges = ranges_of_head(side);
  if (shape.outliers_per_end > 0) {
    const double rate = static_cast<double>(shape.entries_per_token()) / side.width();
    shape.outliers_per_end = 0;
    shape.varying_outliers = true;
    shape.outlier_capacity = layout::outlier_page_capacity(rate, side.head_dim);
  } else if (shape.varying_outliers) {
    shape.outlier_capacity = layout::outlier_page_capacity(side.outlier_rate, side.head_dim);
  }
  return shape;
}

void add_selection(Footprint& sum, const EvictionRecipe& eviction, std::int64_t kept) {
  if (keeps_alike(eviction.rule)) return;
  sum.selection += kept * (kPositionBytes + (eviction.rule == EvictionRule::H2o ? kWeightBytes : 0));
}

std::int64_t unquantized_bytes(const Quantizer& quantizer, int lists, std::int64_t kept) {
  return 2 * kept * (quantizer.shape.width() / lists) * layout::kHalfBytes;
}

}  // namespace

void add_list(Footprint& sum, const layout::PageLayout& page, std::int64_t tokens, std::int64_t sinks) {
  const Footprint one = page_footprint(page);
  const std::int64_t pages = layout::pages(tokens);
  sum.codes += pages * one.codes;
  sum.ranges += pages * one.ranges;
  sum.outliers += pages * one.outliers;
  sum.padding += pages * one.padding;
  sum.tables += pages * layout::kBlockTableBytes;
  sum.exact += sinks * (page.key.width() + page.value.width()) * layout::kHalfBytes;
}

layout::PageLayout list_page(const LayerQuantizer& layer, int lists) {
  return lists == 1 ? page_layout(layer) : layout::page_layout(head_shape(layer.key), head_shape(layer.value));
}

std::int64_t list_overflow_bytes(const layout::SideShape& shape, const std::vector<std::int64_t>& positions, int list,
                                 int lists, std::span<const std::uint32_t> outliers) {
  if (!shape.varying_outliers) return 0;
  std::int64_t blocks = 0;
  for (std::size_t first = 0; first < positions.size(); first += layout::kPageTokens) {
    const std::size_t last = std::min(first + layout::kPageTokens, positions.size());
    std::int64_t count = 0;
    for (std::size_t index = first; index < last; ++index)
      count += outliers[static_cast<std::size_t>(positions[index] * lists + list)];
    blocks += layout::overflow_blocks(count, shape.outlier_capacity);
  }
  return blocks * layout::overflow_block(shape).bytes;
}

double list_outlier_rate(const SideQuantizer& side) {
  const layout::SideShape whole = side_shape(side);
  return whole.outliers_per_end > 0 ? static_cast<double>(whole.entries_per_token()) / side.width() : side.outlier_rate;
}

int kept_lists(const Quantizer& quantizer) {
  return keeps_alike(quantizer.recipe.eviction.rule) ? 1 : quantizer.shape.kv_heads;
}

Footprint kept_footprint(const Quantizer& quantizer, std::int64_t tokens, const std::vector<KeptTokens>& kept,
                         const OutliersPerToken& outliers) {
  const Recipe& recipe = quantizer.recipe;
  const int lists = kept_lists(quantizer);
  const auto of_layer = static_cast<std::size_t>(tokens * lists);
  KVQ_ASSERT(kept.size() == static_cast<std::size_t>(quantizer.shape.layers));
  Footprint sum;
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    KVQ_ASSERT(kept[layer].size() == static_cast<std::size_t>(lists));
    for (int list = 0; list < lists; ++list) {
      const std::vector<std::int64_t>& positions = kept[layer][static_cast<std::size_t>(list)];
      const auto count = static_cast<std::int64_t>(positions.size());
      add_selection(sum, recipe.eviction, count);
      if (!recipe.quantized) {
        sum.exact += unquantized_bytes(quantizer, lists, count);
        continue;
      }
      const layout::PageLayout page = list_page(quantizer.layers[layer], lists);
      const auto sinks = std::lower_bound(positions.begin(), positions.end(), recipe.sinks) - positions.begin();
      add_list(sum, page, count, sinks);
      const std::size_t begin = layer * of_layer;
      sum.outliers += list_overflow_bytes(page.key, positions, list, lists, outliers.key.subspan(begin, of_layer)) +
                      list_overflow_bytes(page.value, positions, list, lists, outliers.value.subspan(begin, of_layer));
    }
  }
  return sum;
}

Footprint forecast_kept_footprint(const Quantizer& quantizer, std::int64_t tokens) {
  const Recipe& recipe = quantizer.recipe;
  const int lists = kept_lists(quantizer);
  const std::vector<std::int64_t> budgets = prompt_budgets(recipe.eviction, quantizer.shape.layers, tokens);
  Footprint sum;
  for (std::size_t layer = 0; layer < budgets.size(); ++layer) {
    const std::int64_t kept = budgets[layer];
    for (int list = 0; list < lists; ++list) {
      add_selection(sum, recipe.eviction, kept);
      if (!recipe.quantized) {
        sum.exact += unquantized_bytes(quantizer, lists, kept);
        continue;
      }
      const LayerQuantizer& sides = quantizer.layers[layer];
      const layout::PageLayout page = list_page(sides, lists);
      const bool all = kept == tokens || recipe.eviction.rule != EvictionRule::FirstRecent;
      const std::int64_t first = all ? recipe.sinks : std::min(recipe.sinks, recipe.eviction.first);
      add_list(sum, page, kept, std::min(first, kept));
      sum.outliers += expected_overflow_bytes(list_outlier_rate(sides.key), page.key, kept) +
                      expected_overflow_bytes(list_outlier_rate(sides.value), page.value, kept);
    }
  }
  return sum;
}

}  // namespace kvq
