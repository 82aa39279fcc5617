#pragma once
// What packed pages say, decoded its own way: bit by bit, in double precision, one value after the other. Packed caches
// of every kind are compared with this; it shares nothing with them but the offsets of kernels/layout/page.h.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvq/kernels/layout/page.h>

namespace kvq::reference {

/// One side (keys or values) of one layer. `width` = kv_heads * head_dim channels.
struct Side {
  layout::SideShape shape;
  layout::SideParts parts;
  int exponent = 0;                 ///< stored fp16 numbers are x * 2^-exponent
  std::vector<double> zero, scale;  ///< `[width]`: centre and half width of the thresholds; unused with online ranges
  int range_channels = 0;           ///< with several ranges per token: neighbouring channels that share one
  std::vector<double> decoded;      ///< `[books][levels]`; books = 1 or kv_heads
  int levels = 0;                   ///< 3, 5, 10, 20: three codes together; 0: 2^bits
  /// Rows of unequal width: bits of each channel, `[width]`, and then, instead of `decoded`, by bits what codes mean.
  std::vector<int> widths;
  std::vector<double> decoded_by_width[9];
  std::vector<double> rotation_scale;  ///< `[width]` a of x' = x diag(a) H / sqrt(block), which pages hold; or empty
};

/// Where overflow block `number` is.
using OverflowBlocks = std::function<const std::uint8_t*(std::uint32_t number)>;

/// IEEE half.
double half_value(std::uint16_t half);

/// The first `tokens` (up to 64) of a page: `[tokens, kv_heads, head_dim]`. Tokens that are kept exact elsewhere come
/// out as what their empty slots say.
std::vector<double> decode_page(const std::uint8_t* page, const Side& side, int tokens, const OverflowBlocks& overflow);

/// A sequence of pages; its first tokens are kept exact: `exact` = `[sinks, kv_heads, head_dim]` fp16.
std::vector<double> decode_pages(std::span<const std::uint8_t* const> pages, const Side& side, std::int64_t tokens,
                                 std::span<const std::uint16_t> exact, const OverflowBlocks& overflow);

}  // namespace kvq::reference
