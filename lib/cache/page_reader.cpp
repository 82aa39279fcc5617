#include <kvq/cache/page_reader.h>

#include <algorithm>

#include <kvq/cache/page_bytes.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

using layout::kPageTokens;

SideDecoder::SideDecoder(const SideQuantizer& quantizer, const layout::SideShape& shape, const layout::SideParts& parts,
                         const PageLoops& loops)
    : shape_(shape),
      parts_(parts),
      loops_(&loops),
      from_stored_(power_of_two(quantizer.exponent)),
      levels_(1 << shape.bits),
      books_(static_cast<int>(quantizer.codebooks.size())) {
  for (const Codebook& book : quantizer.codebooks) {
    for (int entry = 0; entry < std::max(levels_, 16); ++entry) {
      decoded_.push_back(book.decoded[static_cast<std::size_t>(entry % levels_)]);
    }
  }
  for (int channel = 0; channel < shape.width(); ++channel) {
    head_of_channel_.push_back(static_cast<std::uint16_t>(channel / shape.head_dim));
    row_of_channel_.push_back(channel % shape.head_dim * kPageTokens);
  }
  for (std::size_t channel = 0; channel < quantizer.lower.size(); ++channel) {
    const ChannelAffine affine = channel_affine(quantizer.lower[channel], quantizer.upper[channel]);
    zero_.push_back(affine.zero), scale_.push_back(affine.scale);
  }
}

/// Calls visit(token, channel within the token, value) in the order in which the entries are stored.
template <typename Visit>
void SideDecoder::for_each_outlier(const std::uint8_t* page, int slots, const BlockPool& overflow,
                                   std::vector<float>& values, Visit visit) const {
  const auto in_page = static_cast<int>(shape_.page_entries());
  values.resize(static_cast<std::size_t>(in_page) + layout::kOutlierBlockEntries);
  loops_->halves_to_floats(page + parts_.outlier_values, in_page, from_stored_, values.data());
  const int channel_bytes = shape_.channel_bytes();
  const std::uint8_t* channels = page + parts_.outlier_channels;
  if (!shape_.varying_outliers) {
    const int entries = shape_.entries_per_token();
    for (int token = 0, entry = 0; token < slots; ++token) {
      for (int end = entry + entries; entry < end; ++entry) {
        visit(token, load_small(channels, entry, channel_bytes), values[static_cast<std::size_t>(entry)]);
      }
    }
    return;
  }
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  const int groups = layout::outlier_groups(shape_.kv_heads, shape_.head_dim);
  const int group_width = layout::outlier_group_heads(shape_.head_dim) * shape_.head_dim;
  const int count_bytes = layout::outlier_count_bytes(shape_.head_dim);
  const std::uint8_t* link = page + parts_.overflow_link;
  const float* value = values.data();
  std::int64_t entry = 0, room = shape_.outlier_capacity;
  for (int token = 0; token < slots; ++token) {
    for (int group = 0; group < groups; ++group) {
      int count = load_small(page + parts_.outlier_counts, token * groups + group, count_bytes);
      for (; count > 0; --count, ++entry) {
        if (entry == room) {
          const std::uint8_t* data = overflow.data(load_number<std::uint32_t>(link));
          value = values.data() + in_page;
          loops_->halves_to_floats(data, layout::kOutlierBlockEntries, from_stored_, values.data() + in_page);
          channels = data + block.channels;
          link = data + block.link;
          entry = 0, room = layout::kOutlierBlockEntries;
        }
        visit(token, group * group_width + load_small(channels, entry, channel_bytes), value[entry]);
      }
    }
  }
}

void SideDecoder::open(const std::uint8_t* page, int slots, int first_head, int last_head,
                       std::span<const std::uint16_t> sinks, const BlockPool& overflow, OpenPage& out) const {
  const int head_dim = shape_.head_dim, width = shape_.width();
  out.page = page;
  out.first_head = first_head;
  if (shape_.token_ranges) {
    float ranges[2 * kPageTokens];
    loops_->halves_to_floats(page + parts_.ranges, 2 * kPageTokens, from_stored_, ranges);
    for (int token = 0; token < kPageTokens; ++token) {
      out.zero[token] = ranges[2 * token], out.scale[token] = ranges[2 * token + 1];
    }
  }
  out.exact.resize(static_cast<std::size_t>(last_head - first_head));
  for (auto& entries : out.exact) entries.clear();
  const int first_channel = first_head * head_dim, end_channel = last_head * head_dim;
  const auto put = [&](int token, int channel, float value) {
    if (channel < first_channel || channel >= end_channel) return;
    const auto at = static_cast<std::size_t>(channel);
    out.exact[static_cast<std::size_t>(head_of_channel_[at] - first_head)].push_back(
        {row_of_channel_[at] + token, value});
  };
  for_each_outlier(page, slots, overflow, out.values, put);
  for (std::size_t index = 0; index < sinks.size(); ++index) {  // last: the empty slots of sinks say nothing
    put(static_cast<int>(index) / width, static_cast<int>(index) % width, half_to_float(sinks[index]) * from_stored_);
  }
}

void SideDecoder::decode(const OpenPage& page, int kv_head, float* out) const {
  const int head_dim = shape_.head_dim;
  const std::uint8_t* codes = page.page + parts_.codes + kv_head * head_dim * shape_.row_bytes();
  const float* table = decoded_.data() + (books_ == 1 ? 0 : kv_head) * std::max(levels_, 16);
  if (shape_.token_ranges) {
    loops_->decode_tokens(codes, head_dim, shape_.bits, table, page.zero, page.scale, out);
  } else {
    loops_->decode_channels(codes, head_dim, shape_.bits, table, zero_.data() + kv_head * head_dim,
                            scale_.data() + kv_head * head_dim, out);
  }
  for (const auto& [at, value] : page.exact[static_cast<std::size_t>(kv_head - page.first_head)]) out[at] = value;
}

}  // namespace kvq
