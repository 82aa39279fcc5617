#include <kvq/quant/head_coder.h>

#include <algorithm>
#include <cmath>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/block_formats.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/bit_rows.h>

namespace kvq {

HeadCoder::HeadCoder(const SideQuantizer& quantizer)
    : kind_(quantizer.recipe.codebook),
      kv_heads_(quantizer.kv_heads),
      head_dim_(quantizer.head_dim),
      rows_(head_rows(quantizer.recipe, quantizer.head_dim)) {
  check_block_width(kind_, head_dim_);
  if (!is_block_format(kind_)) codecs_ = head_codecs(quantizer);
}

void HeadCoder::encode(std::span<const float> x, EncodedTokens& out) const {
  const std::int64_t width = std::int64_t{kv_heads_} * head_dim_;
  out.tokens = static_cast<std::int64_t>(x.size()) / width;
  const auto vectors = static_cast<std::size_t>(out.tokens * kv_heads_);
  out.codes.resize(vectors * static_cast<std::size_t>(rows_.rows()));
  out.token_range.resize(vectors * static_cast<std::size_t>(rows_.scales()));
  out.outlier_begin.assign(static_cast<std::size_t>(out.tokens) + 1, 0);
  out.outlier_channel.clear(), out.outlier_value.clear(), out.zero_point.clear();
  if (!codecs_.empty()) return encode_codec(x, out);
  const std::int64_t scales = std::int64_t{kv_heads_} * rows_.scales();
  for (std::int64_t token = 0; token < out.tokens; ++token) {
    const auto row = x.subspan(static_cast<std::size_t>(token * width), static_cast<std::size_t>(width));
    if (encode_blocks(kind_, row, out.codes.data() + token * width, out.token_range.data() + token * scales)) continue;
    const auto largest =
        std::max_element(row.begin(), row.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    throw ExactOverflow(token, static_cast<int>(largest - row.begin()), *largest, largest_of_block(kind_));
  }
}

void HeadCoder::encode_codec(std::span<const float> x, EncodedTokens& out) const {
  const auto dim = static_cast<std::size_t>(head_dim_), heads = static_cast<std::size_t>(kv_heads_);
  const auto tokens = static_cast<std::size_t>(out.tokens);
  std::vector<float> vectors(tokens * dim);
  std::vector<std::byte> bytes;
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t token = 0; token < tokens; ++token) {
      const auto from = x.subspan((token * heads + head) * dim, dim);
      std::copy(from.begin(), from.end(), vectors.begin() + static_cast<std::ptrdiff_t>(token * dim));
    }
    bytes.clear();
    try {
      codecs_[head]->encode(vectors, bytes);
    } catch (const VectorOverflow& overflow) {
      throw ExactOverflow(overflow.row, static_cast<int>(head * dim) + overflow.channel, overflow.value,
                          overflow.limit);
    }
    std::span<const std::byte> rest = bytes;
    for (std::size_t token = 0; token < tokens; ++token) {
      const std::size_t vector = token * heads + head;
      auto code = out.codes.begin() + static_cast<std::ptrdiff_t>(vector * static_cast<std::size_t>(rows_.rows()));
      auto scale =
          out.token_range.begin() + static_cast<std::ptrdiff_t>(vector * static_cast<std::size_t>(rows_.scales()));
      for (const RowRun& run : rows_.runs) {
        for (int index = 0; index < run.scales; ++index, rest = rest.subspan(2)) *scale++ = get_half(rest);
        const std::span<std::uint8_t> codes(&*code, static_cast<std::size_t>(run.count));
        const std::size_t size = packed_bytes(codes.size(), run.bits);
        unpack_bits(rest.first(size), run.bits, codes);
        rest = rest.subspan(size), code += run.count;
      }
    }
    KVQ_ASSERT(rest.empty());
  }
}

void HeadCoder::decode(int kv_head, std::span<const std::uint8_t> codes, std::span<const std::uint16_t> scales,
                       std::span<float> x) const {
  const auto dim = static_cast<std::size_t>(head_dim_);
  if (codecs_.empty()) {
    const std::vector<float>& levels = block_levels(kind_);
    for (std::size_t index = 0; index < x.size(); ++index) {
      const float scale = scales.empty() ? 1.0f : half_to_float(scales[index / kBlockFormatChannels]);
      x[index] = levels[codes[index]] * scale;
    }
    return;
  }
  std::vector<std::byte> bytes;
  for (std::size_t token = 0; token < x.size() / dim; ++token) {
    for (const RowRun& run : rows_.runs) {
      for (int index = 0; index < run.scales; ++index, scales = scales.subspan(1)) put_half(scales.front(), bytes);
      const auto count = static_cast<std::size_t>(run.count);
      pack_bits(codes.first(count), run.bits, bytes);
      codes = codes.subspan(count);
    }
  }
  codecs_[static_cast<std::size_t>(kv_head)]->decode(bytes, x);
}

}  // namespace kvq
