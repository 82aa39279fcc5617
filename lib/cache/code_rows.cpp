#include <kvq/cache/code_rows.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <kvq/cache/page_bytes.h>
#include <kvq/core/error.h>
#include <kvq/kernels/layout/grouped_codes.h>

namespace kvq {

namespace {

using layout::kGroupCodes;
using layout::kPageTokens;

/// Where the code of a slot is in its row of codes that stand three together.
struct Digit {
  int first, bits;  ///< of the group, or of a code of the tail
  std::uint32_t weight;
};
Digit digit_of(int levels, int slot) {
  const int group = slot / kGroupCodes, groups = kPageTokens / kGroupCodes;
  if (group < groups) {
    std::uint32_t weight = 1;
    for (int place = 0; place < slot % kGroupCodes; ++place) weight *= static_cast<std::uint32_t>(levels);
    return {group * layout::group_bits(levels), layout::group_bits(levels), weight};
  }
  const int bits = layout::bits_for(levels);
  return {groups * layout::group_bits(levels) + (slot - groups * kGroupCodes) * bits, bits, 1};
}

}  // namespace

CodeRows::CodeRows(const SideQuantizer& quantizer, const layout::SideShape& shape)
    : width_(shape.width()),
      head_dim_(shape.head_dim),
      levels_(quantizer.recipe.levels),
      head_bytes_(shape.code_bytes() / shape.kv_heads) {
  if (levels_ != 0) return;
  const bool by_channel = quantizer.recipe.widths == Widths::Pair;
  if (by_channel && quantizer.widths.size() != static_cast<std::size_t>(width_)) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has widths of {} channels instead of {}", quantizer.widths.size(), width_));
  }
  for (int channel = 0; channel < width_; ++channel) {
    const std::int64_t begin = channel / head_dim_ * head_bytes_;
    const std::int64_t offset =
        channel % head_dim_ == 0 ? begin : rows_.back().offset + kPageTokens * rows_.back().bits / 8;
    rows_.push_back({static_cast<std::int32_t>(offset),
                     by_channel ? quantizer.widths[static_cast<std::size_t>(channel)] : shape.bits});
    if (channel % head_dim_ + 1 < head_dim_) continue;
    if (const std::int64_t bytes = offset + kPageTokens * rows_.back().bits / 8 - begin; bytes != head_bytes_) {
      fail(ErrorKind::Mismatch,
           fmt::format("quantizer has {} bits for the channels of kv head {}; its recipe gives {} to every head vector",
                       bytes / 8, channel / head_dim_, head_bytes_ / 8));
    }
  }
}

std::int64_t CodeRows::first_bit(int channel) const {
  return channel / head_dim_ * head_bytes_ * 8 + channel % head_dim_ * layout::grouped_row_bits(levels_, kPageTokens);
}

void CodeRows::write(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const {
  if (levels_ == 0) return write_single(codes, first_slot, count, from);
  write_grouped(codes, first_slot, count, from);
}

void CodeRows::write_single(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const {
  std::uint64_t words[8];  // a row
  for (int channel = 0; channel < width_; ++channel) {
    const auto [offset, bits] = row(channel);
    std::uint8_t* bytes = codes + offset;
    const auto row_bytes = static_cast<std::size_t>(kPageTokens * bits / 8);
    std::memcpy(words, bytes, row_bytes);
    const std::uint8_t* code = from + channel;
    for (int position = first_slot * bits, left = count; left > 0 && bits > 0; position += bits, --left) {
      const int word = position / 64, shift = position % 64;
      words[word] |= std::uint64_t{*code} << shift;
      if (shift + bits > 64) words[word + 1] |= std::uint64_t{*code} >> (64 - shift);
      code += width_;
    }
    std::memcpy(bytes, words, row_bytes);
  }
}

void CodeRows::write_grouped(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const {
  for (int token = 0; token < count; ++token) {
    const Digit digit = digit_of(levels_, first_slot + token);
    for (int channel = 0; channel < width_; ++channel) {
      const std::int64_t at = first_bit(channel) + digit.first;
      store_bits(codes, at, digit.bits, load_bits(codes, at, digit.bits) + *from++ * digit.weight);
    }
  }
}

void CodeRows::crop(std::uint8_t* codes, int slots) const {
  if (levels_ != 0) {
    for (int slot = kPageTokens - 1; slot >= slots; --slot) {
      const Digit digit = digit_of(levels_, slot);  // what is above it is 0 by now
      for (int channel = 0; channel < width_; ++channel) {
        const std::int64_t at = first_bit(channel) + digit.first;
        store_bits(codes, at, digit.bits, load_bits(codes, at, digit.bits) % digit.weight);
      }
    }
    return;
  }
  for (int channel = 0; channel < width_; ++channel) {
    const auto [offset, bits] = row(channel);
    std::uint8_t* bytes = codes + offset;
    const int kept_bits = slots * bits, row_bytes = kPageTokens * bits / 8;
    int byte = kept_bits / 8;
    if (kept_bits % 8 != 0) bytes[byte++] &= static_cast<std::uint8_t>((1u << (kept_bits % 8)) - 1);
    std::fill(bytes + byte, bytes + row_bytes, std::uint8_t{0});
  }
}

}  // namespace kvq
