#include <kvq/quant/group_encoder.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

GroupEncoder::GroupEncoder(const SideQuantizer& quantizer, SimdLevel level)
    : finder_(quantizer, level),
      loops_(encode_loops(level)),
      bits_(quantizer.recipe.bits),
      to_stored_(power_of_two(-quantizer.exponent)),
      from_stored_(power_of_two(quantizer.exponent)) {
  const int books = codebook_count(quantizer.recipe, quantizer.kv_heads, quantizer.head_dim);
  if (quantizer.codebooks.size() != static_cast<std::size_t>(books)) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} codebooks; its recipe needs {}", quantizer.codebooks.size(), books));
  }
  const int channels = quantizer.width() / books;
  for (int book = 0; book < books; ++book) {
    const Codebook& codebook = quantizer.codebooks[static_cast<std::size_t>(book)];
    if (codebook.levels() != 1 << bits_ || codebook.decoded.size() != codebook.centroids.size()) {
      fail(ErrorKind::Mismatch,
           fmt::format("codebook {} has {} centroids; {} bits need {}", book, codebook.levels(), bits_, 1 << bits_));
    }
    segments_.push_back({book * channels, channels, codebook.boundaries()});
  }
}

void GroupEncoder::encode(std::span<const float> x, std::int64_t first_position, EncodedTokens& out) const {
  FoundRanges found;
  if (!x.empty()) finder_.find(x, first_position, found);
  put(x, found, out);
  out.token_range = std::move(found.stored);
  out.zero_point = std::move(found.zero_point);
}

void GroupEncoder::encode_within(std::span<const float> x, std::span<const float> zero, std::span<const float> scale,
                                 EncodedTokens& out) const {
  FoundRanges found;
  finder_.find_exact(x, found);
  found.zero.assign(zero.begin(), zero.end());
  for (const float half_width : scale) found.inverse.push_back(inverse_of(half_width));
  put(x, found, out);
  out.token_range.clear();
  out.zero_point.clear();
}

void GroupEncoder::put(std::span<const float> x, const FoundRanges& found, EncodedTokens& out) const {
  const auto width = static_cast<std::size_t>(finder_.width());
  out.tokens = static_cast<std::int64_t>(found.row.size());
  out.codes.resize(x.size());
  out.outlier_channel.clear();
  out.outlier_value.clear();
  out.outlier_begin.assign(1, 0);
  std::vector<float> x_hat(width);
  for (std::size_t token = 0; token < found.row.size(); ++token) {
    const std::size_t first = token * width, range = static_cast<std::size_t>(found.row[token]) * width;
    std::uint8_t* codes = out.codes.data() + first;
    loops_.normalise_channels(x.data() + first, found.zero.data() + range, found.inverse.data() + range,
                              finder_.width(), x_hat.data());
    for (const Segment& segment : segments_) {
      loops_.assign_codes(x_hat.data() + segment.begin, segment.count, segment.boundaries.data(), bits_,
                          codes + segment.begin);
    }
    for (std::size_t channel = 0; channel < width && found.exact_count[token] > 0; ++channel) {
      if (!found.exact[first + channel]) continue;
      const float value = x[first + channel];
      const std::uint16_t half = float_to_half(value * to_stored_);
      if ((half & 0x7fffu) >= 0x7c00u) {
        throw ExactOverflow(static_cast<std::int64_t>(token), static_cast<int>(channel), value,
                            kHalfMax * from_stored_);
      }
      codes[channel] = 0;
      out.outlier_channel.push_back(static_cast<std::uint16_t>(channel));
      out.outlier_value.push_back(half);
    }
    out.outlier_begin.push_back(static_cast<std::uint32_t>(out.outlier_channel.size()));
  }
}

}  // namespace kvq
