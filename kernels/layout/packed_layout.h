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
// - Outliers of a side, in one list for each kv head, the lists one after the other: per kv head a count of 2 bytes (4
//   from head_dim 1024 on); per entry an fp16 value, the channel within the head, 1 byte for head_dim <= 256, else 2,
//   and the token within the page, 6 bits. Entries are in order of head, token, channel, so a kv head is read by
//   itself, and any entry by itself.
//
//   Where every token has the same number (one range per token: 2k of them, or width, if that is less) there is room
//   for 64 times that; slots of sinks and of tokens not yet there have none. Where the number varies (one range per
//   channel) there is room for `capacity` entries and a 4-byte link to the first overflow block. `capacity` is the
//   calibrated number per page, rate * width * 64, and a 32nd more, rounded up to a multiple of 8. What exceeds it goes
//   on, in the same order, in overflow blocks of 8 entries and a 4-byte link to the next block, taken from a pool of
//   the cache. Capacity is counted whether used or not; overflow blocks as they are taken, whole.
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

/// Of a kv head's list; up to 64 * head_dim entries.
constexpr int outlier_count_bytes(int head_dim) { return head_dim < 1024 ? 2 : 4; }
constexpr int outlier_channel_bytes(int head_dim) { return head_dim > 256 ? 2 : 1; }

/// Tokens of `entries` entries, a multiple of 4.
inline constexpr int kOutlierTokenBits = 6;
constexpr std::int64_t outlier_token_bytes(std::int64_t entries) { return entries * kOutlierTokenBits / 8; }

/// Values, channels and tokens of `entries` entries, a multiple of 4.
constexpr std::int64_t outlier_entry_bytes(int head_dim, std::int64_t entries) {
  return entries * (kHalfBytes + outlier_channel_bytes(head_dim)) + outlier_token_bytes(entries);
}

/// Entries reserved in every page for a calibrated rate (outliers per value), channel axis.
constexpr std::int64_t outlier_page_capacity(double rate, int width) {
  const double expected = rate * width * kPageTokens * (33.0 / 32.0);
  const auto whole = static_cast<std::int64_t>(expected);
  return div_up(whole + (expected > static_cast<double>(whole) ? 1 : 0), kOutlierBlockEntries) * kOutlierBlockEntries;
}

/// Overflow blocks of a page that holds `outliers`.
constexpr std::int64_t overflow_blocks(std::int64_t outliers, std::int64_t capacity) {
  return outliers > capacity ? div_up(outliers - capacity, kOutlierBlockEntries) : 0;
}

}  // namespace kvq::layout
