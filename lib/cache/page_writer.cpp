#include <kvq/cache/page_writer.h>

#include <algorithm>

#include <kvq/cache/page_bytes.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

using layout::kOutlierBlockEntries;

/// Where the entries of a page with varying outliers lie: the room in the page, then a chain of overflow blocks.
class EntryCursor {
 public:
  EntryCursor(const layout::SideShape& shape, const layout::SideParts& parts, std::uint8_t* page, BlockPool& overflow)
      : block_(layout::overflow_block(shape)),
        channel_bytes_(shape.channel_bytes()),
        overflow_(overflow),
        values_(page + parts.outlier_values),
        channels_(page + parts.outlier_channels),
        link_(page + parts.overflow_link),
        room_(shape.outlier_capacity) {}

  /// Goes on by `entries`, all of which must be there, taking no new block at the very end.
  void skip(std::int64_t entries) {
    while (entries > room_) {
      entries -= room_;
      enter(load_number<std::uint32_t>(link_));
    }
    advance(entries);
  }

  void append(std::uint16_t value, int channel) {
    if (room_ == 0) {
      const std::uint32_t block = overflow_.take();
      store_number(overflow_.data(block) + block_.link, layout::kNoBlock);
      store_number(link_, block);
      enter(block);
    }
    store_number(values_, value);
    store_small(channels_, 0, channel_bytes_, channel);
    advance(1);
  }

  /// Makes everything behind the cursor as if nothing had been written there.
  void cut() {
    std::fill_n(values_, room_ * layout::kHalfBytes, std::uint8_t{0});
    std::fill_n(channels_, room_ * channel_bytes_, std::uint8_t{0});
    std::uint32_t next = load_number<std::uint32_t>(link_);
    store_number(link_, layout::kNoBlock);
    while (next != layout::kNoBlock) {
      const std::uint32_t block = next;
      next = load_number<std::uint32_t>(overflow_.data(block) + block_.link);
      overflow_.give_back(block);
    }
  }

 private:
  void enter(std::uint32_t block) {
    KVQ_ASSERT(block != layout::kNoBlock);
    std::uint8_t* data = overflow_.data(block);
    values_ = data;
    channels_ = data + block_.channels;
    link_ = data + block_.link;
    room_ = kOutlierBlockEntries;
  }
  void advance(std::int64_t entries) {
    values_ += entries * layout::kHalfBytes;
    channels_ += entries * channel_bytes_;
    room_ -= entries;
  }

  layout::OverflowBlock block_;
  int channel_bytes_;
  BlockPool& overflow_;
  std::uint8_t *values_, *channels_, *link_;
  std::int64_t room_;  ///< entries from the cursor to the end of the page's room or of the block
};

}  // namespace

void PageWriter::begin() {
  if (shape_.varying_outliers) store_number(page_ + parts_.overflow_link, layout::kNoBlock);
}

void PageWriter::write(int first_slot, const EncodedTokens& tokens) {
  const int count = static_cast<int>(tokens.tokens);
  KVQ_ASSERT(first_slot >= 0 && first_slot + count <= layout::kPageTokens);
  rows_.write(page_ + parts_.codes, first_slot, count, tokens.codes.data());
  write_ranges(first_slot, tokens);
  if (const int entries = shape_.entries_per_token(); entries > 0) {
    KVQ_ASSERT(tokens.outliers() == std::int64_t{count} * entries);
    const std::int64_t first = std::int64_t{first_slot} * entries;
    for (std::int64_t entry = 0; entry < tokens.outliers(); ++entry) {
      store_number(page_ + parts_.outlier_values + (first + entry) * layout::kHalfBytes,
                   tokens.outlier_value[static_cast<std::size_t>(entry)]);
      store_small(page_ + parts_.outlier_channels, first + entry, shape_.channel_bytes(),
                  tokens.outlier_channel[static_cast<std::size_t>(entry)]);
    }
  }
}

void PageWriter::write_ranges(int first_slot, const EncodedTokens& tokens) {
  if (tokens.token_range.empty()) return;
  const bool whole_zeros = shape_.zero_bits == 8 * layout::kHalfBytes;
  const std::int64_t first =
      std::int64_t{shape_.token_ranges ? first_slot : first_slot / shape_.group_tokens} * shape_.ranges;
  std::memcpy(page_ + parts_.ranges + first * (whole_zeros ? 2 : 1) * layout::kHalfBytes, tokens.token_range.data(),
              tokens.token_range.size() * sizeof(std::uint16_t));
  std::int64_t bit = std::int64_t{shape_.range_sets()} * shape_.ranges * 8 * layout::kHalfBytes;
  bit += first * shape_.zero_bits;
  for (const std::uint8_t point : tokens.zero_point) {
    store_bits(page_ + parts_.ranges, bit, shape_.zero_bits, point);
    bit += shape_.zero_bits;
  }
}

void PageWriter::crop_ranges(int slots) {
  const auto sets = static_cast<std::int64_t>(shape_.range_sets());
  if (sets == 0) return;
  const bool whole_zeros = shape_.zero_bits == 8 * layout::kHalfBytes;
  const std::int64_t first = (shape_.token_ranges ? slots : layout::div_up(slots, shape_.group_tokens)) * shape_.ranges;
  const std::int64_t size = (whole_zeros ? 2 : 1) * layout::kHalfBytes, end = sets * shape_.ranges;
  std::fill(page_ + parts_.ranges + first * size, page_ + parts_.ranges + end * size, std::uint8_t{0});
  for (std::int64_t range = first; range < end && !whole_zeros; ++range)
    store_bits(page_ + parts_.ranges, end * size * 8 + range * shape_.zero_bits, shape_.zero_bits, 0);
}

void PageWriter::write_varying_outliers(int first_slot, const EncodedTokens& tokens, BlockPool& overflow) {
  if (!shape_.varying_outliers || tokens.outliers() == 0) return;
  const int groups = layout::outlier_groups(shape_.kv_heads, shape_.head_dim);
  const int group_width = layout::outlier_group_heads(shape_.head_dim) * shape_.head_dim;
  const int count_bytes = layout::outlier_count_bytes(shape_.head_dim);
  EntryCursor cursor(shape_, parts_, page_, overflow);
  cursor.skip(outliers_before(first_slot));
  std::uint8_t* counts = page_ + parts_.outlier_counts;
  for (std::int64_t token = 0; token < tokens.tokens; ++token) {
    for (std::size_t entry = tokens.outlier_begin[token]; entry < tokens.outlier_begin[token + 1]; ++entry) {
      const int channel = tokens.outlier_channel[entry], group = channel / group_width;
      const std::int64_t counter = (first_slot + token) * groups + group;
      store_small(counts, counter, count_bytes, load_small(counts, counter, count_bytes) + 1);
      cursor.append(tokens.outlier_value[entry], channel - group * group_width);
    }
  }
}

void PageWriter::crop(int slots, BlockPool& overflow) {
  rows_.crop(page_ + parts_.codes, slots);
  crop_ranges(slots);
  crop_outliers(slots, overflow);
}

void PageWriter::crop_outliers(int slots, BlockPool& overflow) {
  if (shape_.varying_outliers) {
    EntryCursor cursor(shape_, parts_, page_, overflow);
    cursor.skip(outliers_before(slots));
    cursor.cut();
    const std::int64_t count_bytes = shape_.count_bytes() / layout::kPageTokens;  // of one slot
    std::fill(page_ + parts_.outlier_counts + slots * count_bytes, page_ + parts_.outlier_counts + shape_.count_bytes(),
              std::uint8_t{0});
  } else if (const int entries = shape_.entries_per_token(); entries > 0) {
    const std::int64_t kept = std::int64_t{slots} * entries;
    std::fill(page_ + parts_.outlier_values + kept * layout::kHalfBytes,
              page_ + parts_.outlier_values + shape_.page_entries() * layout::kHalfBytes, std::uint8_t{0});
    std::fill(page_ + parts_.outlier_channels + kept * shape_.channel_bytes(),
              page_ + parts_.outlier_channels + shape_.page_entries() * shape_.channel_bytes(), std::uint8_t{0});
  }
}

std::int64_t PageWriter::outliers_before(int slot) const {
  const std::int64_t counters = std::int64_t{slot} * layout::outlier_groups(shape_.kv_heads, shape_.head_dim);
  const int count_bytes = layout::outlier_count_bytes(shape_.head_dim);
  std::int64_t sum = 0;
  for (std::int64_t counter = 0; counter < counters; ++counter) {
    sum += load_small(page_ + parts_.outlier_counts, counter, count_bytes);
  }
  return sum;
}

}  // namespace kvq
