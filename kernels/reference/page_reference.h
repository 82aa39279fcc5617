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
  std::vector<double> zero, scale;  ///< `[width]`: centre and half width of the thresholds; empty with ranges per token
  std::vector<double> decoded;      ///< `[books][2^bits]`; books = 1 or kv_heads
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
