#include <kvq/quant/side_shape.h>

#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/head_rows.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

layout::SideShape side_shape(const SideQuantizer& side) {
  const SideRecipe& recipe = side.recipe;
  layout::SideShape shape;
  shape.kv_heads = side.kv_heads, shape.head_dim = side.head_dim;
  shape.bits = recipe.bits;
  if (has_own_format(recipe.codebook)) {
    if (codes_blocks(recipe)) {  // apart from the pages
      shape.bits = 0;
      return shape;
    }
    const HeadRows rows = head_rows(recipe, side.head_dim);
    shape.head_code_bits = layout::kPageTokens * rows.bits();
    shape.token_ranges = rows.scales() > 0;
    shape.ranges = side.kv_heads * rows.scales();
    shape.zero_bits = 0;
    return shape;
  }
  if (recipe.levels != 0) {
    shape.head_code_bits = side.head_dim * layout::grouped_row_bits(recipe.levels, layout::kPageTokens);
  } else if (recipe.widths == Widths::Pair) {
    shape.head_code_bits = std::int64_t{layout::kPageTokens} * head_vector_bits(recipe, side.head_dim);
  }
  if (recipe.range == RangeKind::Online) {
    shape.token_ranges = recipe.axis != Axis::ChannelGroup;
    shape.ranges = shape.token_ranges ? ranges_per_token(recipe, side.width()) : side.width();
    shape.group_tokens = shape.token_ranges ? 0 : recipe.group;
    shape.zero_bits = recipe.integer_zero ? recipe.bits : 8 * layout::kHalfBytes;
  }
  if (recipe.outliers == 0.0) return shape;
  if (outlier_rule(recipe) == OutlierRule::Threshold) {
    shape.varying_outliers = true;
    shape.outlier_capacity = layout::outlier_page_capacity(side.outlier_rate, side.width());
  } else if (recipe.axis == Axis::ChannelGroup) {
    shape.group_outliers_per_end = outliers_per_end(recipe.outliers, recipe.group);
  } else {
    shape.outliers_per_end = outliers_per_end(recipe.outliers, side.width());
  }
  return shape;
}

layout::PageLayout page_layout(const LayerQuantizer& layer) {
  return layout::page_layout(side_shape(layer.key), side_shape(layer.value));
}

}  // namespace kvq
