#pragma once
// Where the parts of a page lie. A page holds 64 tokens of one layer, keys and values, all kv heads; packed_layout.h
// says what the parts are. Every reader and writer (CPU, CUDA, reference) takes offsets from here and nowhere else.
//
//   codes            [kv_heads][head_dim] rows of 8 * bits bytes
//   ranges           [64][ranges][2] fp16, zero and scale; groups of tokens: [64 /
//   group_tokens][kv_heads][head_dim][2];
//                    with zero points of fewer bits (zero_bits): the steps, fp16, of all of these, then the zero
//                    points, zero_bits each from the lowest bit of a byte up
//   outlier counts   [kv_heads], 2 or 4 bytes each; the first is aligned to 4
//   overflow link    4 bytes, aligned to 4
//   outlier values   [entries] fp16
//   outlier channels [entries], 1 or 2 bytes each
//   outlier tokens   [entries] 6 bits, from the lowest bit of a byte up
//
// each first of the keys, then of the values; then padding to a multiple of 16 bytes, counted.
//
// A part that a recipe does not need has size 0. Values, channels and tokens of outliers are apart so that the first
// two are aligned.

#include <cstdint>

#include <kvq/kernels/layout/packed_layout.h>

namespace kvq::layout {

inline constexpr int kPageAlignment = 16;               ///< bytes; one load of a GPU thread, one bulk copy's unit
inline constexpr std::uint32_t kNoBlock = 0xffffffffu;  ///< link that leads nowhere

/// What the layout must know of one side of a recipe.
struct SideShape {
  int kv_heads = 0, head_dim = 0;
  int bits = 0;                       ///< 1 … 8
  bool token_ranges = false;          ///< zero and scale per token, or for each of its groups of channels (online)
  int outliers_per_end = 0;           ///< axis token: exact values on each end of a token; 0: none
  bool varying_outliers = false;      ///< axis channel with static thresholds: number differs from token to token
  std::int64_t outlier_capacity = 0;  ///< entries in the page, if varying; a multiple of kOutlierBlockEntries, or 0
  // What the CUDA kernels do not know; long groups and group_outliers_per_end are simulated only:
  int ranges = 1;                  ///< ranges of a token; with group_tokens, of a group
  int group_tokens = 0;            ///< axis channel-group: tokens that share ranges; 0: none
  int zero_bits = 8 * kHalfBytes;  ///< of a zero point; a scale is fp16
  int group_outliers_per_end = 0;  ///< axis channel-group, rule topk: exact values on each end of a channel in a group
  /// Codes of one page and kv head where not all are alike (widths=pair, grouped_codes.h, formats of their own); 0: 64
  /// · bits a channel.
  std::int64_t head_code_bits = 0;

  constexpr int width() const { return kv_heads * head_dim; }
  constexpr int entries_per_token() const { return 2 * outliers_per_end < width() ? 2 * outliers_per_end : width(); }
  /// Entries for which the page itself has room.
  constexpr std::int64_t page_entries() const {
    return varying_outliers ? outlier_capacity : std::int64_t{kPageTokens} * entries_per_token();
  }
  constexpr bool has_outliers() const { return varying_outliers || outliers_per_end > 0; }
  /// Bytes of an outlier's channel and of a count.
  constexpr int channel_bytes() const { return outlier_channel_bytes(head_dim); }
  constexpr int outlier_count_bytes() const { return layout::outlier_count_bytes(head_dim); }
  constexpr std::int64_t row_bytes() const { return std::int64_t{kPageTokens} * bits / 8; }
  constexpr std::int64_t code_bytes() const {
    return kv_heads * (head_code_bits > 0 ? div_up(head_code_bits, 8) : code_page_bytes(head_dim, bits));
  }
  /// Sets of `ranges` ranges in a page: of its tokens, or of the groups of tokens that lie in it. Larger groups:
  /// long_group_bytes().
  constexpr int range_sets() const {
    if (token_ranges) return kPageTokens;
    return group_tokens > 0 && group_tokens <= kPageTokens ? kPageTokens / group_tokens : 0;
  }
  constexpr std::int64_t range_bytes() const {
    return div_up(std::int64_t{range_sets()} * ranges * (8 * kHalfBytes + zero_bits), 8);
  }
  /// Outliers of one group of tokens, rule topk: values and the tokens that they are of.
  constexpr std::int64_t group_outlier_bytes() const {
    const int entries = 2 * group_outliers_per_end < group_tokens ? 2 * group_outliers_per_end : group_tokens;
    return std::int64_t{width()} * entries * (kHalfBytes + (group_tokens > 256 ? 2 : 1));
  }
  /// The part of these in a page.
  constexpr std::int64_t page_group_outlier_bytes() const {
    return group_tokens > 0 && group_tokens <= kPageTokens ? kPageTokens / group_tokens * group_outlier_bytes() : 0;
  }
  /// What a group of more tokens than a page holds keeps apart from the pages: ranges and outliers.
  constexpr std::int64_t long_group_bytes() const {
    if (group_tokens <= kPageTokens) return 0;
    return div_up(std::int64_t{ranges} * (8 * kHalfBytes + zero_bits), 8) + group_outlier_bytes();
  }
  constexpr std::int64_t count_bytes() const {
    return has_outliers() ? std::int64_t{kv_heads} * outlier_count_bytes() : 0;
  }
};

/// Byte offsets of one side's parts from the start of the page.
struct SideParts {
  std::int64_t codes = 0, ranges = 0, outlier_counts = 0, overflow_link = 0;
  std::int64_t outlier_values = 0, outlier_channels = 0, outlier_tokens = 0;
};

struct PageLayout {
  SideShape key, value;
  SideParts key_parts, value_parts;
  std::int64_t used = 0;   ///< bytes without the padding
  std::int64_t bytes = 0;  ///< a multiple of kPageAlignment
};

constexpr PageLayout page_layout(const SideShape& key, const SideShape& value) {
  PageLayout page{key, value, {}, {}, 0, 0};
  std::int64_t end = 0;
  const auto place = [&end](std::int64_t& key_offset, std::int64_t key_bytes, std::int64_t& value_offset,
                            std::int64_t value_bytes) {
    key_offset = end;
    value_offset = end + key_bytes;
    end += key_bytes + value_bytes;
  };
  SideParts &k = page.key_parts, &v = page.value_parts;
  place(k.codes, key.code_bytes(), v.codes, value.code_bytes());
  place(k.ranges, key.range_bytes(), v.ranges, value.range_bytes());
  if (key.has_outliers() || value.has_outliers()) end = div_up(end, 4) * 4;
  place(k.outlier_counts, key.count_bytes(), v.outlier_counts, value.count_bytes());
  if (key.varying_outliers || value.varying_outliers) end = div_up(end, 4) * 4;
  place(k.overflow_link, key.varying_outliers ? kOverflowLinkBytes : 0, v.overflow_link,
        value.varying_outliers ? kOverflowLinkBytes : 0);
  place(k.outlier_values, key.page_entries() * kHalfBytes, v.outlier_values, value.page_entries() * kHalfBytes);
  place(k.outlier_channels, key.page_entries() * key.channel_bytes(), v.outlier_channels,
        value.page_entries() * value.channel_bytes());
  place(k.outlier_tokens, outlier_token_bytes(key.page_entries()), v.outlier_tokens,
        outlier_token_bytes(value.page_entries()));
  end += key.page_group_outlier_bytes() + value.page_group_outlier_bytes();
  page.used = end;
  page.bytes = div_up(end, kPageAlignment) * kPageAlignment;
  return page;
}

/// An overflow block: fp16 values of 8 entries, their channels, their tokens, and the number of the next block.
struct OverflowBlock {
  std::int64_t channels = 0, tokens = 0, link = 0, bytes = 0;  ///< offsets; the values are at 0
};
constexpr OverflowBlock overflow_block(const SideShape& side) {
  const std::int64_t channels = std::int64_t{kOutlierBlockEntries} * kHalfBytes;
  const std::int64_t tokens = channels + std::int64_t{kOutlierBlockEntries} * side.channel_bytes();
  const std::int64_t link = div_up(tokens + outlier_token_bytes(kOutlierBlockEntries), 4) * 4;
  return {channels, tokens, link, link + kOverflowLinkBytes};
}

}  // namespace kvq::layout
