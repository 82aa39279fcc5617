#include <kvq/cache/side_coder.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

SideCoder::SideCoder(const SideQuantizer& quantizer)
    : width_(static_cast<std::size_t>(quantizer.width())),
      to_stored_(power_of_two(-quantizer.exponent)),
      from_stored_(power_of_two(quantizer.exponent)) {
  if (has_own_format(quantizer.recipe.codebook)) {
    heads_.emplace(quantizer);
  } else if (is_streaming(quantizer.recipe)) {
    streaming_.emplace(quantizer);
  } else {
    grouped_.emplace(quantizer);
  }
}

void SideCoder::encode(std::span<const float> x, std::int64_t first_position, EncodedTokens& out) const {
  if (heads_) return heads_->encode(x, out);
  if (streaming_) return streaming_->encode(x, out);
  grouped_->encode(x, first_position, out);
}

void SideCoder::encode_within(std::span<const float> x, std::span<const float> zero, std::span<const float> scale,
                              EncodedTokens& out) const {
  KVQ_ASSERT(grouped_);
  grouped_->encode_within(x, zero, scale, out);
}

std::vector<std::uint16_t> SideCoder::to_exact(std::span<const float> x) const {
  std::vector<std::uint16_t> halves;
  halves.reserve(x.size());
  for (std::size_t index = 0; index < x.size(); ++index) {
    halves.push_back(float_to_half(x[index] * to_stored_));
    if ((halves.back() & 0x7fffu) < 0x7c00u) continue;
    throw ExactOverflow(static_cast<std::int64_t>(index / width_), static_cast<int>(index % width_), x[index],
                        kHalfMax * from_stored_);
  }
  return halves;
}

float SideCoder::from_exact(std::uint16_t half) const { return half_to_float(half) * from_stored_; }

}  // namespace kvq
