#pragma once
// What the packed layout must know of a quantizer: counted bits and packed caches both ask here.

#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

layout::SideShape side_shape(const SideQuantizer& side);

/// Where the parts of a layer's pages lie.
layout::PageLayout page_layout(const LayerQuantizer& layer);

}  // namespace kvq
