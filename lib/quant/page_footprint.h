#pragma once
// Pieces of counted bits that whole caches (footprint.h) and caches that evict (eviction_footprint.h) share. Internal
// to lib/quant.

#include <cstdint>

#include <kvq/kernels/layout/page.h>
#include <kvq/quant/footprint.h>

namespace kvq {

/// One page: codes, ranges, outliers and padding.
Footprint page_footprint(const layout::PageLayout& page);

/// Expected overflow blocks of a page of `tokens` tokens of `width` values when every value is an outlier by itself
/// with the calibrated rate: the count is Poisson. Summed over all counts within 12 standard deviations.
double expected_overflow_blocks(double outlier_rate, int width, std::int64_t capacity, std::int64_t tokens);

/// Bytes of the overflow blocks that `tokens` tokens of a side are expected to need, pages filled one after another.
std::int64_t expected_overflow_bytes(double outlier_rate, const layout::SideShape& side, std::int64_t tokens);

}  // namespace kvq
