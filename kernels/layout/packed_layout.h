#pragma once
// Constants and size rules of the packed cache, host and device; published in FORMAT.md. Counted bits of the simulated
// cache use them too, so they are fixed before any packed cache exists.
//
// A sequence owns, in every layer, ceil(tokens / 64) pages. A block table with one 4-byte entry per page and layer says
// where they are: sequences grow, are cropped and freed without moving data. A page holds, for keys and for values:
//
// - Codes: per kv head `head_dim` rows, one per channel, of 64 codes of `bits` bits. A row is 8 * bits bytes without
//   gaps: token t of the page has bits t * bits and up, counted from the lowest bit of the first byte. Slots of tokens
//   not yet there, of sinks and of outliers hold 0 and are counted. Rows of unequal width, and three codes together:
//   SideShape::head_code_bits, grouped_codes.h.
//
// - Ranges, token axis only: per token zero and scale, fp16 each. Of groups of channels or of tokens: page.h.
//
// - Outliers of a side with one range per token: per token 2k entries (width, if that is less), each an fp16 value and
//   the channel within the token, 1 byte for width <= 256, else 2.
//
// - Outliers of a side with one range per channel, whose number varies: per token and group of kv heads a count; room
//   for `capacity` entries; a 4-byte link to the first overflow block. An entry is an fp16 value and the channel within
//   its group; entries are in order of token, group, channel. A group is as many whole kv heads as have at most 255
//   channels together, so that counts and channels fit one byte even when all are outliers; a larger head is a group by
//   itself, with counts of 2 bytes and, above 256 channels, channels of 2 bytes. `capacity` is the calibrated number
//   per page, rate * width * 64, rounded up to a multiple of 8. What exceeds it goes on, in the same order, in overflow
//   blocks of 8 entries and a 4-byte link to the next block, taken from a pool of the cache. Capacity is counted
//   whether used or not; overflow blocks as they are taken, whole.
//
// Apart from the pages, per sequence, layer and side: the first min(sinks, tokens) tokens, and room for those that wait
// to be quantized, `width` fp16 each.
//
// All fp16 numbers are x * 2^-exponent with the exponent of their layer and side. Per-model tables (thresholds,
// codebooks) are counted apart.

#include <cstdint>

namespace kvq::layout {

inline constexpr int kPageTokens = 64;      ///< tokens per page
inline constexpr int kBlockTableBytes = 4;  ///< one entry per page and layer
inline constexpr int kHalfBytes = 2;        ///< exact values, online zero and scale

inline constexpr int kOutlierBlockEntries = 8;  ///< capacity and overflow come in blocks of so many entries
inline constexpr int kOverflowLinkBytes = 4;    ///< one in each page and one in each overflow block

constexpr std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t pages(std::int64_t tokens) { return div_up(tokens, kPageTokens); }

/// Codes of one page, kv head and side.
constexpr std::int64_t code_page_bytes(int head_dim, int bits) {
  return static_cast<std::int64_t>(head_dim) * kPageTokens * bits / 8;
}

/// Zeros and scales of one page and side, token axis.
constexpr std::int64_t range_page_bytes() { return kPageTokens * 2 * kHalfBytes; }

/// Outliers of one page and side, token axis; `per_end` on each end.
constexpr std::int64_t token_outlier_page_bytes(int width, int per_end) {
  const int entries = 2 * per_end < width ? 2 * per_end : width;
  return static_cast<std::int64_t>(kPageTokens) * entries * (kHalfBytes + (width <= 256 ? 1 : 2));
}

/// kv heads that share one count.
constexpr int outlier_group_heads(int head_dim) { return head_dim >= 255 ? 1 : 255 / head_dim; }
constexpr int outlier_groups(int kv_heads, int head_dim) {
  return static_cast<int>(div_up(kv_heads, outlier_group_heads(head_dim)));
}
constexpr int outlier_count_bytes(int head_dim) { return head_dim > 255 ? 2 : 1; }
constexpr int outlier_entry_bytes(int head_dim) { return kHalfBytes + (head_dim > 256 ? 2 : 1); }

/// Entries reserved in every page for a calibrated rate (outliers per value), channel axis.
constexpr std::int64_t outlier_page_capacity(double rate, int width) {
  const double expected = rate * width * kPageTokens;
  const auto whole = static_cast<std::int64_t>(expected);
  return div_up(whole + (expected > static_cast<double>(whole) ? 1 : 0), kOutlierBlockEntries) * kOutlierBlockEntries;
}

/// What a page of a side with outliers, channel axis, occupies before any overflow.
constexpr std::int64_t channel_outlier_page_bytes(int kv_heads, int head_dim, std::int64_t capacity) {
  return static_cast<std::int64_t>(kPageTokens) * outlier_groups(kv_heads, head_dim) * outlier_count_bytes(head_dim) +
         capacity * outlier_entry_bytes(head_dim) + kOverflowLinkBytes;
}

/// Overflow blocks of a page that holds `outliers`.
constexpr std::int64_t overflow_blocks(std::int64_t outliers, std::int64_t capacity) {
  return outliers > capacity ? div_up(outliers - capacity, kOutlierBlockEntries) : 0;
}
constexpr std::int64_t overflow_block_bytes(int head_dim) {
  return static_cast<std::int64_t>(kOutlierBlockEntries) * outlier_entry_bytes(head_dim) + kOverflowLinkBytes;
}

}  // namespace kvq::layout
