#include <kvq/cache/page_reader.h>

#include <algorithm>

#include <kvq/cache/outlier_list.h>
#include <kvq/cache/page_bytes.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/rounding_recipe.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

using layout::kPageTokens;

SideDecoder::SideDecoder(const SideQuantizer& quantizer, const layout::SideShape& shape, const layout::SideParts& parts,
                         const CodeRows& rows, const PageLoops& loops, const std::optional<SideRotation>& rotation)
    : shape_(shape),
      parts_(parts),
      loops_(&loops),
      from_stored_(power_of_two(quantizer.exponent)),
      levels_(code_levels(quantizer.recipe)),
      books_(static_cast<int>(quantizer.codebooks.size())),
      channels_of_range_(group_channels(quantizer.recipe, quantizer.width())),
      grouped_(rows.levels() != 0),
      rotation_(rotation) {
  if (has_own_format(quantizer.recipe.codebook)) own_format_.emplace(quantizer, loops, rotation.has_value());
  add_tables(quantizer);
  if (quantizer.recipe.widths == Widths::Pair) add_runs(quantizer, rows);
  for (int channel = 0; channel < shape.width(); ++channel) {
    head_of_channel_.push_back(static_cast<std::uint16_t>(channel / shape.head_dim));
    row_of_channel_.push_back(channel % shape.head_dim * kPageTokens);
  }
  for (std::size_t channel = 0; channel < quantizer.lower.size(); ++channel) {
    const ChannelAffine affine = channel_affine(quantizer.lower[channel], quantizer.upper[channel]);
    zero_.push_back(affine.zero), scale_.push_back(affine.scale);
  }
}

void SideDecoder::add_tables(const SideQuantizer& quantizer) {
  table_stride_ = levels_ > 16 ? 32 : 16;
  for (const Codebook& book : quantizer.codebooks) table_stride_ = std::max(table_stride_, book.decoded.size());
  for (const Codebook& book : quantizer.codebooks) {
    for (std::size_t entry = 0; entry < table_stride_; ++entry)
      decoded_.push_back(book.decoded[entry % book.decoded.size()]);
  }
}

void SideDecoder::add_runs(const SideQuantizer& quantizer, const CodeRows& rows) {
  const std::vector<int> choices = width_choices(quantizer.recipe);
  for (int head = 0; head < shape_.kv_heads; ++head) {
    std::vector<Run>& runs = runs_.emplace_back();
    for (int channel = 0; channel < shape_.head_dim; ++channel) {
      const auto [offset, bits] = rows.row(head * shape_.head_dim + channel);
      if (!runs.empty() && runs.back().bits == bits) {
        ++runs.back().channels;
        continue;
      }
      const auto choice = std::find(choices.begin(), choices.end(), bits) - choices.begin();
      runs.push_back({channel, 1, bits, offset, static_cast<std::size_t>(choice)});
    }
  }
}

/// Calls visit(token, channel within the token, value) for entries of kv heads first_head … last_head - 1 in tokens
/// below `slots`, in the order in which they are stored.
template <typename Visit>
void SideDecoder::for_each_outlier(const std::uint8_t* page, int slots, int first_head, int last_head,
                                   const BlockPool& overflow, OpenPage& scratch, Visit visit) const {
  if (!shape_.has_outliers()) return;
  const auto count_of = [&](int head) {
    const std::uint8_t* counts = page + parts_.outlier_counts;
    return shape_.outlier_count_bytes() == 2 ? std::int64_t{load_small(counts, head, 2)}
                                             : load_number<std::int32_t>(counts + std::ptrdiff_t{4} * head);
  };
  std::int64_t begin = 0, end = 0;
  for (int head = 0; head < last_head; ++head) (head < first_head ? begin : end) += count_of(head);
  end += begin;
  // From a multiple of four on, where tokens begin at a byte.
  const std::int64_t room = shape_.page_entries(), first = std::min(begin, room) & ~std::int64_t{3};
  const std::int64_t in_page = std::min(layout::div_up(end, 4) * 4, room) - first;
  const int channel_bytes = shape_.channel_bytes();
  std::vector<float>& values = scratch.values;
  std::vector<std::uint8_t>& tokens = scratch.tokens;
  values.resize(static_cast<std::size_t>(std::max<std::int64_t>(in_page, layout::kOutlierBlockEntries)));
  tokens.resize(values.size());
  loops_->halves_to_floats(page + parts_.outlier_values + first * layout::kHalfBytes, static_cast<int>(in_page),
                           from_stored_, values.data());
  unpack_outlier_tokens(page + parts_.outlier_tokens + layout::outlier_token_bytes(first), in_page, tokens.data());

  const layout::OverflowBlock block = layout::overflow_block(shape_);
  const std::uint8_t *link = page + parts_.overflow_link, *channels = page + parts_.outlier_channels;
  std::int64_t base = first, part_end = room, index = begin;  // entries base … of the list are in the arrays
  for (int head = first_head; head < last_head; ++head) {
    for (std::int64_t left = count_of(head); left > 0; --left, ++index) {
      while (index >= part_end) {
        const std::uint8_t* data = overflow.data(load_number<std::uint32_t>(link));
        link = data + block.link;
        base = part_end, part_end += layout::kOutlierBlockEntries;
        if (index >= part_end) continue;
        loops_->halves_to_floats(data, layout::kOutlierBlockEntries, from_stored_, values.data());
        unpack_outlier_tokens(data + block.tokens, layout::kOutlierBlockEntries, tokens.data());
        channels = data + block.channels - base * channel_bytes;
      }
      const auto at = static_cast<std::size_t>(index - base);
      if (tokens[at] < slots)
        visit(int{tokens[at]}, head * shape_.head_dim + load_small(channels, index, channel_bytes), values[at]);
    }
  }
}

void SideDecoder::open_ranges(const std::uint8_t* page, OpenPage& out) const {
  const int sets = shape_.range_sets(), count = sets * shape_.ranges;
  const bool whole_zeros = shape_.zero_bits == 8 * layout::kHalfBytes;
  const auto size = static_cast<std::size_t>(count);
  std::vector<float> stored(whole_zeros ? 2 * size : size);
  loops_->halves_to_floats(page + parts_.ranges, static_cast<int>(stored.size()), from_stored_, stored.data());
  out.zeros.resize(size), out.scales.resize(size);
  const auto levels = static_cast<float>(levels_ - 1);
  for (int index = 0; index < count; ++index) {
    // Groups of tokens as they lie; ranges of tokens with the token last.
    const int place = shape_.token_ranges ? index % shape_.ranges * sets + index / shape_.ranges : index;
    const auto from = static_cast<std::size_t>(index), to = static_cast<std::size_t>(place);
    if (whole_zeros) {
      out.zeros[to] = stored[2 * from], out.scales[to] = stored[2 * from + 1];
      continue;
    }
    const auto point = static_cast<float>(
        load_bits(page + parts_.ranges, std::int64_t{count} * 16 + index * shape_.zero_bits, shape_.zero_bits));
    out.zeros[to] = (0.5f * levels - point) * stored[from];  // as RangeFinder computes them
    out.scales[to] = 0.5f * levels * stored[from];
  }
}

void SideDecoder::group_ranges(const std::uint8_t* page, int slot, std::vector<float>& zero,
                               std::vector<float>& scale) const {
  OpenPage open;
  open_ranges(page, open);
  const auto first = slot / shape_.group_tokens * std::ptrdiff_t{shape_.width()};
  zero.assign(open.zeros.begin() + first, open.zeros.begin() + first + shape_.width());
  scale.assign(open.scales.begin() + first, open.scales.begin() + first + shape_.width());
}

void SideDecoder::open(const std::uint8_t* page, int slots, int first_head, int last_head,
                       std::span<const std::uint16_t> sinks, const BlockPool& overflow, OpenPage& out) const {
  const int head_dim = shape_.head_dim, width = shape_.width();
  out.page = page;
  out.first_head = first_head;
  if (own_format_) {
    own_format_->open_scales(page + parts_.ranges, out.scales, out.scratch);
  } else if (shape_.group_tokens > 0 || shape_.ranges > 1 || shape_.zero_bits != 8 * layout::kHalfBytes) {
    open_ranges(page, out);
  } else if (shape_.token_ranges) {
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
  for_each_outlier(page, slots, first_head, last_head, overflow, out, put);
  const std::vector<float> exact = exact_tokens(sinks);
  for (std::size_t index = 0; index < exact.size(); ++index)  // last: the empty slots of sinks say nothing
    put(static_cast<int>(index) / width, static_cast<int>(index) % width, exact[index]);
}

std::vector<float> SideDecoder::exact_tokens(std::span<const std::uint16_t> tokens) const {
  std::vector<float> x(tokens.size());
  for (std::size_t index = 0; index < tokens.size(); ++index) x[index] = half_to_float(tokens[index]) * from_stored_;
  if (rotation_) rotation_->forward(x);
  return x;
}

void SideDecoder::decode_runs(const OpenPage& page, int kv_head, float* out) const {
  for (const Run& run : runs_[static_cast<std::size_t>(kv_head)]) {
    const float* table = decoded_.data() + run.table * table_stride_;
    const float* zero = zero_.data() + kv_head * shape_.head_dim + run.first_channel;
    const float* scale = scale_.data() + kv_head * shape_.head_dim + run.first_channel;
    float* to = out + run.first_channel * kPageTokens;
    if (run.bits > 0) {
      loops_->decode_channels(page.page + parts_.codes + run.offset, run.channels, run.bits, table, zero, scale, to);
      continue;
    }
    for (int row = 0; row < run.channels; ++row)
      std::fill_n(to + row * kPageTokens, kPageTokens, zero[row] + scale[row] * table[0]);
  }
}

/// Several ranges per token: neighbouring channels that share one are decoded together.
void SideDecoder::decode_grouped_tokens(const OpenPage& page, int kv_head, const float* table, float* out) const {
  const int begin = kv_head * shape_.head_dim, end = begin + shape_.head_dim;
  for (int channel = begin, rows = 0; channel < end; channel += rows) {
    const int range = channel / channels_of_range_;
    rows = std::min(end, (range + 1) * channels_of_range_) - channel;
    loops_->decode_tokens(page.page + parts_.codes + channel * shape_.row_bytes(), rows, shape_.bits, table,
                          page.zeros.data() + range * kPageTokens, page.scales.data() + range * kPageTokens,
                          out + (channel - begin) * kPageTokens);
  }
}

void SideDecoder::decode_grouped_channels(const OpenPage& page, int kv_head, const float* table, float* out) const {
  float zero[kPageTokens], scale[kPageTokens];
  const int begin = kv_head * shape_.head_dim, end = begin + shape_.head_dim;
  for (int channel = begin; channel < end; ++channel) {
    for (int set = 0; set < shape_.range_sets(); ++set) {
      const auto at = static_cast<std::size_t>(set * shape_.width() + channel);
      std::fill_n(zero + set * shape_.group_tokens, shape_.group_tokens, page.zeros[at]);
      std::fill_n(scale + set * shape_.group_tokens, shape_.group_tokens, page.scales[at]);
    }
    loops_->decode_tokens(page.page + parts_.codes + channel * shape_.row_bytes(), 1, shape_.bits, table, zero, scale,
                          out + (channel - begin) * kPageTokens);
  }
}

void SideDecoder::decode(OpenPage& page, int kv_head, float* out) const {
  const std::uint8_t* codes = page.page + parts_.codes + kv_head * (shape_.code_bytes() / shape_.kv_heads);
  if (own_format_) {
    own_format_->decode(codes, page.page + parts_.ranges, page.scales.data(), kv_head, out, page.scratch);
  } else {
    decode_codes(page, codes, kv_head, out);
  }
  for (const auto& [at, value] : page.exact[static_cast<std::size_t>(kv_head - page.first_head)]) out[at] = value;
}

void SideDecoder::decode_codes(const OpenPage& page, const std::uint8_t* codes, int kv_head, float* out) const {
  const int head_dim = shape_.head_dim;
  const float* table = decoded_.data() + (books_ == 1 ? 0 : static_cast<std::size_t>(kv_head)) * table_stride_;
  const float *zero = page.zero, *scale = page.scale;
  if (!shape_.token_ranges) zero = zero_.data() + kv_head * head_dim, scale = scale_.data() + kv_head * head_dim;
  if (!runs_.empty()) {
    decode_runs(page, kv_head, out);
  } else if (shape_.group_tokens > 0) {
    decode_grouped_channels(page, kv_head, table, out);
  } else if (shape_.token_ranges && (shape_.ranges > 1 || shape_.zero_bits != 8 * layout::kHalfBytes)) {
    decode_grouped_tokens(page, kv_head, table, out);
  } else if (grouped_) {
    loops_->decode_grouped(codes, head_dim, levels_, shape_.token_ranges, table, zero, scale, out);
  } else if (shape_.token_ranges) {
    loops_->decode_tokens(codes, head_dim, shape_.bits, table, zero, scale, out);
  } else {
    loops_->decode_channels(codes, head_dim, shape_.bits, table, zero, scale, out);
  }
}

}  // namespace kvq
