#include <kvq/quant/tier_coder.h>

#include <algorithm>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// The code of `to` that is nearest to what each code of `from` stands for.
std::vector<std::uint8_t> recoding(const Codebook& from, const Codebook& to) {
  const std::vector<float> boundaries = to.boundaries();
  std::vector<std::uint8_t> table;
  for (const float value : from.decoded) {
    const auto end = std::lower_bound(boundaries.begin(), boundaries.end(), value);
    table.push_back(static_cast<std::uint8_t>(end - boundaries.begin()));
  }
  return table;
}

}  // namespace

SideQuantizer tier_side(const SideQuantizer& side, int tier) {
  SideQuantizer alone = side;
  alone.lower_tiers.clear();
  if (tier == 0) return alone;
  const LowerTier& lower = side.lower_tiers.at(static_cast<std::size_t>(tier) - 1);
  alone.recipe.bits = lower.bits;
  alone.codebooks = lower.codebooks;
  return alone;
}

TierCoder::TierCoder(const SideQuantizer& quantizer)
    : head_dim_(quantizer.head_dim), width_(quantizer.width()), book_channels_(quantizer.width()) {
  const int count = static_cast<int>(quantizer.lower_tiers.size()) + 1;
  std::vector<SideQuantizer> sides;
  for (int tier = 0; tier < count; ++tier) {
    sides.push_back(tier_side(quantizer, tier));
    encoders_.emplace_back(sides.back());
  }
  const std::size_t books = quantizer.codebooks.size();
  book_channels_ = width_ / static_cast<int>(books);
  for (const SideQuantizer& from : sides) {
    for (const SideQuantizer& to : sides) {
      std::vector<std::vector<std::uint8_t>>& tables = tables_.emplace_back();
      for (std::size_t book = 0; book < books; ++book)
        tables.push_back(recoding(from.codebooks[book], to.codebooks[book]));
    }
  }
}

const std::uint8_t* TierCoder::table(int from, int to, int channel) const {
  return tables_[static_cast<std::size_t>(from * tiers() + to)][static_cast<std::size_t>(channel / book_channels_)]
      .data();
}

void TierCoder::encode(std::span<const float> x, int tier, EncodedTokens& out) const {
  KVQ_ASSERT(x.size() == static_cast<std::size_t>(width_));
  encoders_[static_cast<std::size_t>(tier)].encode(x, out);
}

void TierCoder::recode(EncodedTokens& token, int first_head, int head_count, int from, int to) const {
  KVQ_ASSERT(token.tokens == 1);
  const int begin = first_head * head_dim_, end = begin + head_count * head_dim_;
  for (int channel = begin; channel < end; ++channel) {
    std::uint8_t& code = token.codes[static_cast<std::size_t>(channel)];
    code = table(from, to, channel)[code];
  }
  for (const std::uint16_t channel : token.outlier_channel) {  // they have no code: 0 in every tier
    if (channel >= begin && channel < end) token.codes[channel] = 0;
  }
}

void TierCoder::decode(const EncodedTokens& token, int first_head, int head_count, int tier, std::span<float> x) const {
  KVQ_ASSERT(token.tokens == 1);
  if (head_count * head_dim_ == width_) return encoders_[static_cast<std::size_t>(tier)].decode(token, x);
  // Other heads' codes may be of another tier and mean nothing here; those of more bits lie beyond this tier's table.
  EncodedTokens own = token;
  std::vector<float> whole(static_cast<std::size_t>(width_));
  const auto begin = static_cast<std::size_t>(first_head * head_dim_),
             count = static_cast<std::size_t>(head_count * head_dim_);
  std::fill(own.codes.begin(), own.codes.begin() + static_cast<std::ptrdiff_t>(begin), std::uint8_t{0});
  std::fill(own.codes.begin() + static_cast<std::ptrdiff_t>(begin + count), own.codes.end(), std::uint8_t{0});
  encoders_[static_cast<std::size_t>(tier)].decode(own, whole);
  std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), count, x.begin());
}

}  // namespace kvq
