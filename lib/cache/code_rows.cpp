#include <kvq/cache/code_rows.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <kvq/cache/page_bytes.h>
#include <kvq/core/error.h>
#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/quant/head_rows.h>
#include <kvq/quant/recipe_traits.h>

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

/// Bits of the rows of one kv head after the other.
std::vector<int> row_bits(const SideQuantizer& quantizer, const layout::SideShape& shape) {
  const SideRecipe& recipe = quantizer.recipe;
  if (recipe.widths == Widths::Pair) {
    if (quantizer.widths.size() != static_cast<std::size_t>(shape.width())) {
      fail(ErrorKind::Mismatch,
           fmt::format("quantizer has widths of {} channels instead of {}", quantizer.widths.size(), shape.width()));
    }
    return {quantizer.widths.begin(), quantizer.widths.end()};
  }
  if (!has_own_format(recipe.codebook)) return std::vector<int>(static_cast<std::size_t>(shape.width()), shape.bits);
  std::vector<int> bits;
  const HeadRows rows = head_rows(recipe, shape.head_dim);
  for (int head = 0; head < shape.kv_heads; ++head) {
    for (const RowRun& run : rows.runs) bits.insert(bits.end(), static_cast<std::size_t>(run.count), run.bits);
  }
  return bits;
}

}  // namespace

CodeRows::CodeRows(const SideQuantizer& quantizer, const layout::SideShape& shape)
    : count_(shape.width()),
      head_dim_(shape.head_dim),
      levels_(quantizer.recipe.levels),
      head_bytes_(shape.code_bytes() / shape.kv_heads) {
  if (levels_ != 0) return;
  const std::vector<int> bits = row_bits(quantizer, shape);
  count_ = static_cast<int>(bits.size());
  const int of_head = count_ / shape.kv_heads;
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::int64_t offset = head * head_bytes_;
    for (int row = 0; row < of_head; ++row) {
      const int width = bits[static_cast<std::size_t>(head * of_head + row)];
      rows_.push_back({static_cast<std::int32_t>(offset), width});
      offset += kPageTokens * width / 8;
    }
    if (const std::int64_t bytes = offset - head * head_bytes_; bytes != head_bytes_) {
      fail(ErrorKind::Mismatch,
           fmt::format("quantizer has {} bits for the channels of kv head {}; its recipe gives {} to every head vector",
                       bytes / 8, head, head_bytes_ / 8));
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
  for (int channel = 0; channel < count_; ++channel) {
    const auto [offset, bits] = row(channel);
    std::uint8_t* bytes = codes + offset;
    const auto row_bytes = static_cast<std::size_t>(kPageTokens * bits / 8);
    std::memcpy(words, bytes, row_bytes);
    const std::uint8_t* code = from + channel;
    for (int position = first_slot * bits, left = count; left > 0 && bits > 0; position += bits, --left) {
      const int word = position / 64, shift = position % 64;
      words[word] |= std::uint64_t{*code} << shift;
      if (shift + bits > 64) words[word + 1] |= std::uint64_t{*code} >> (64 - shift);
      code += count_;
    }
    std::memcpy(bytes, words, row_bytes);
  }
}

void CodeRows::write_grouped(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const {
  for (int token = 0; token < count; ++token) {
    const Digit digit = digit_of(levels_, first_slot + token);
    for (int channel = 0; channel < count_; ++channel) {
      const std::int64_t at = first_bit(channel) + digit.first;
      store_bits(codes, at, digit.bits, load_bits(codes, at, digit.bits) + *from++ * digit.weight);
    }
  }
}

void CodeRows::crop(std::uint8_t* codes, int slots) const {
  if (levels_ != 0) {
    for (int slot = kPageTokens - 1; slot >= slots; --slot) {
      const Digit digit = digit_of(levels_, slot);  // what is above it is 0 by now
      for (int channel = 0; channel < count_; ++channel) {
        const std::int64_t at = first_bit(channel) + digit.first;
        store_bits(codes, at, digit.bits, load_bits(codes, at, digit.bits) % digit.weight);
      }
    }
    return;
  }
  for (int channel = 0; channel < count_; ++channel) {
    const auto [offset, bits] = row(channel);
    std::uint8_t* bytes = codes + offset;
    const int kept_bits = slots * bits, row_bytes = kPageTokens * bits / 8;
    int byte = kept_bits / 8;
    if (kept_bits % 8 != 0) bytes[byte++] &= static_cast<std::uint8_t>((1u << (kept_bits % 8)) - 1);
    std::fill(bytes + byte, bytes + row_bytes, std::uint8_t{0});
  }
}

}  // namespace kvq
