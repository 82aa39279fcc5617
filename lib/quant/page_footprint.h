#pragma once
// Pieces of counted bits that whole caches (footprint.h), caches that evict (eviction_footprint.h) and caches with
// tiers (tier_footprint.h) share. Internal to lib/quant.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/kernels/layout/page.h>
#include <kvq/quant/footprint.h>

namespace kvq {

/// One page: codes, ranges, outliers and padding.
Footprint page_footprint(const layout::PageLayout& page);

/// As a list of kept tokens has its pages: of the whole layer (one list), or of one kv head with a copy of each token's
/// range and outliers as lists of varying length.
layout::PageLayout list_page(const LayerQuantizer& layer, int lists);
/// Pages and block table of one list; of exact first tokens `sinks`.
void add_list(Footprint& sum, const layout::PageLayout& page, std::int64_t tokens, std::int64_t sinks);
/// Overflow blocks of a list whose tokens stand at `positions`. `outliers`: of one layer and side, `[tokens, lists]`.
std::int64_t list_overflow_bytes(const layout::SideShape& shape, const std::vector<std::int64_t>& positions, int list,
                                 int lists, std::span<const std::uint32_t> outliers);
/// Outliers per value of a list, where their number varies.
double list_outlier_rate(const SideQuantizer& side);

/// Expected overflow blocks of a page of `tokens` tokens of `width` values when every value is an outlier by itself
/// with the calibrated rate: the count is Poisson. Summed over all counts within 12 standard deviations.
double expected_overflow_blocks(double outlier_rate, int width, std::int64_t capacity, std::int64_t tokens);

/// Bytes of the overflow blocks that `tokens` tokens of a side are expected to need, pages filled one after another.
std::int64_t expected_overflow_bytes(double outlier_rate, const layout::SideShape& side, std::int64_t tokens);

}  // namespace kvq
