#pragma once
// Constants and size rules of the packed cache, host and device. Published in lib/artifacts/FORMAT.md. Counted bits of the
// simulated cache use them too, so they are fixed before any packed cache exists.

#include <cstdint>

namespace kvq::layout {

inline constexpr int kPageTokens = 64;        ///< tokens per page
inline constexpr int kBlockTableBytes = 4;    ///< one entry per page and layer
inline constexpr int kHalfBytes = 2;          ///< exact values, online zero and scale

// Outliers of keys: their number varies from token to token. A page keeps, per token and group of whole kv heads, a count;
// then for every outlier its channel within the group (1 byte) and its fp16 value, tokens in order.
inline constexpr int kOutlierChannelBytes = 1;
inline constexpr int kOutlierBlockEntries = 8;  ///< capacity and overflow come in blocks of so many entries
inline constexpr int kOverflowLinkBytes = 4;    ///< one per overflow block: which block of the pool follows

constexpr std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t pages(std::int64_t tokens) { return div_up(tokens, kPageTokens); }

/// Bytes of the codes of one page of one kv head and side: `head_dim` rows of 64 codes of `bits`, tight.
constexpr std::int64_t code_page_bytes(int head_dim, int bits) {
  return static_cast<std::int64_t>(head_dim) * kPageTokens * bits / 8;
}

/// kv heads that share one count: as many as keep a count in one byte (a token may be all outliers).
constexpr int outlier_group_heads(int head_dim) { return head_dim >= 255 ? 1 : 255 / head_dim; }
constexpr int outlier_groups(int kv_heads, int head_dim) {
  return static_cast<int>(div_up(kv_heads, outlier_group_heads(head_dim)));
}
constexpr int outlier_count_bytes(int head_dim) { return head_dim > 255 ? 2 : 1; }

/// Entries reserved in every page for a calibrated rate (outliers per value): the mean, rounded up to a block.
constexpr std::int64_t outlier_page_capacity(double rate, int width) {
  const double expected = rate * width * kPageTokens;
  const std::int64_t entries = static_cast<std::int64_t>(expected) + (expected > static_cast<std::int64_t>(expected) ? 1 : 0);
  return div_up(entries, kOutlierBlockEntries) * kOutlierBlockEntries;
}

constexpr std::int64_t outlier_entry_bytes() { return kHalfBytes + kOutlierChannelBytes; }

}  // namespace kvq::layout
