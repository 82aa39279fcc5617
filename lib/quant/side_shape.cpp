#include <kvq/quant/side_shape.h>

#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/quant/encoder.h>

namespace kvq {

layout::SideShape side_shape(const SideQuantizer& side) {
  layout::SideShape shape;
  shape.kv_heads = side.kv_heads, shape.head_dim = side.head_dim;
  shape.bits = side.recipe.bits;
  if (side.recipe.levels != 0) {
    shape.head_code_bits = side.head_dim * layout::grouped_row_bits(side.recipe.levels, layout::kPageTokens);
  } else if (side.recipe.widths == Widths::Pair) {
    shape.head_code_bits = std::int64_t{layout::kPageTokens} * head_vector_bits(side.recipe, side.head_dim);
  }
  shape.token_ranges = side.recipe.axis == Axis::Token;
  if (shape.token_ranges) {
    shape.outliers_per_end = outliers_per_end(side.recipe.outliers, side.width());
  } else if (side.recipe.outliers > 0.0) {
    shape.varying_outliers = true;
    shape.outlier_capacity = layout::outlier_page_capacity(side.outlier_rate, side.width());
  }
  return shape;
}

layout::PageLayout page_layout(const LayerQuantizer& layer) {
  return layout::page_layout(side_shape(layer.key), side_shape(layer.value));
}

}  // namespace kvq
