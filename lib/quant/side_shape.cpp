#include <kvq/quant/side_shape.h>

#include <kvq/quant/encoder.h>

namespace kvq {

layout::SideShape side_shape(const SideQuantizer& side) {
  layout::SideShape shape;
  shape.kv_heads = side.kv_heads, shape.head_dim = side.head_dim;
  shape.bits = side.recipe.bits;
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
