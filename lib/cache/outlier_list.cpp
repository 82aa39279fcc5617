#include <kvq/cache/outlier_list.h>

#include <algorithm>
#include <tuple>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Room for entries: the page's own, or a block.
struct Room {
  std::uint8_t *values, *channels, *tokens;
  std::int64_t entries;
};

Room room_in_page(const layout::SideShape& shape, const layout::SideParts& parts, std::uint8_t* page) {
  return {page + parts.outlier_values, page + parts.outlier_channels, page + parts.outlier_tokens,
          shape.page_entries()};
}

Room room_in_block(const layout::OverflowBlock& block, std::uint8_t* data) {
  return {data, data + block.channels, data + block.tokens, layout::kOutlierBlockEntries};
}

void clear(const Room& room, int channel_bytes) {
  std::fill_n(room.values, room.entries * layout::kHalfBytes, std::uint8_t{0});
  std::fill_n(room.channels, room.entries * channel_bytes, std::uint8_t{0});
  std::fill_n(room.tokens, layout::outlier_token_bytes(room.entries), std::uint8_t{0});
}

}  // namespace

void OutlierList::begin() {
  if (shape_.varying_outliers) store_number(page_ + parts_.overflow_link, layout::kNoBlock);
}

std::vector<OutlierEntry> OutlierList::read(const BlockPool& overflow) const {
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  const int channel_bytes = shape_.channel_bytes();
  std::vector<OutlierEntry> entries;
  Room room = room_in_page(shape_, parts_, page_);
  const std::uint8_t* link = page_ + parts_.overflow_link;
  std::int64_t at = 0;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (int left = count(head); left > 0; --left, ++at) {
      if (at == room.entries) {
        auto* data = const_cast<std::uint8_t*>(overflow.data(load_number<std::uint32_t>(link)));
        room = room_in_block(block, data);
        link = data + block.link;
        at = 0;
      }
      entries.push_back(
          {head * shape_.head_dim + load_small(room.channels, at, channel_bytes),
           static_cast<std::int32_t>(load_bits(room.tokens, at * layout::kOutlierTokenBits, layout::kOutlierTokenBits)),
           load_number<std::uint16_t>(room.values + at * layout::kHalfBytes)});
    }
  }
  return entries;
}

void OutlierList::write(std::vector<OutlierEntry> entries, BlockPool& overflow) {
  const int head_dim = shape_.head_dim;
  std::sort(entries.begin(), entries.end(), [head_dim](const OutlierEntry& a, const OutlierEntry& b) {
    return std::tuple(a.channel / head_dim, a.token, a.channel) < std::tuple(b.channel / head_dim, b.token, b.channel);
  });
  const auto total = static_cast<std::int64_t>(entries.size());
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  std::uint8_t* link = page_ + parts_.overflow_link;
  Room room = room_in_page(shape_, parts_, page_);
  KVQ_ASSERT(shape_.varying_outliers || total <= room.entries);
  // The chain first: taking a block may fail, and then nothing has changed but for blocks that are empty.
  std::int64_t blocks = shape_.varying_outliers ? layout::overflow_blocks(total, shape_.outlier_capacity) : 0;
  for (std::uint8_t* last = link; blocks > 0; --blocks) {
    if (load_number<std::uint32_t>(last) == layout::kNoBlock) {
      const std::uint32_t taken = overflow.take();
      store_number(overflow.data(taken) + block.link, layout::kNoBlock);
      store_number(last, taken);
    }
    last = overflow.data(load_number<std::uint32_t>(last)) + block.link;
  }

  std::fill_n(page_ + parts_.outlier_counts, shape_.count_bytes(), std::uint8_t{0});
  clear(room, shape_.channel_bytes());
  std::int64_t at = 0;
  for (const OutlierEntry& entry : entries) {
    if (at == room.entries) {
      std::uint8_t* data = overflow.data(load_number<std::uint32_t>(link));
      room = room_in_block(block, data);
      clear(room, shape_.channel_bytes());
      link = data + block.link;
      at = 0;
    }
    const int head = entry.channel / head_dim;
    std::uint8_t* counts = page_ + parts_.outlier_counts;
    if (shape_.outlier_count_bytes() == 2) {
      store_small(counts, head, 2, count(head) + 1);
    } else {
      store_number(counts + std::ptrdiff_t{4} * head, count(head) + 1);
    }
    store_number(room.values + at * layout::kHalfBytes, entry.value);
    store_small(room.channels, at, shape_.channel_bytes(), entry.channel - head * head_dim);
    store_bits(room.tokens, at * layout::kOutlierTokenBits, layout::kOutlierTokenBits,
               static_cast<std::uint32_t>(entry.token));
    ++at;
  }
  if (!shape_.varying_outliers) return;
  auto next = load_number<std::uint32_t>(link);
  store_number(link, layout::kNoBlock);
  while (next != layout::kNoBlock) {
    const std::uint32_t spare = next;
    next = load_number<std::uint32_t>(overflow.data(spare) + block.link);
    overflow.give_back(spare);
  }
}

}  // namespace kvq
