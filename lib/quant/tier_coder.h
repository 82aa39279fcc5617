#pragma once
// Tokens of one layer and side at the bits of their tiers (tiers.h). A token is encoded once, as the recipe of the
// first tier encodes it; from then on there is nothing but what is stored: codes of the next tier come from codes,
//
//   code' = number of boundaries of the next tier's codebook that are < decoded[code],
//
// a table of 2^bits entries for each codebook. The token's range and its exact values are the same in all tiers and
// stay what they are. Going back up is the same table the other way: no precision returns.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/encoder.h>

namespace kvq {

/// Built once per layer and side; const and thread-safe.
class TierCoder {
 public:
  /// Throws Mismatch when a tier's tables do not have the sizes that the recipe needs.
  explicit TierCoder(const SideQuantizer& quantizer);

  int tiers() const { return static_cast<int>(encoders_.size()); }

  /// One token `[kv_heads, head_dim]`, with the bits of `tier`: of the first one, but for oracles. Throws
  /// ExactOverflow.
  void encode(std::span<const float> x, int tier, EncodedTokens& out) const;
  /// Codes of kv heads [first, first + count) of one token, which are those of tier `from`, become those of tier `to`.
  void recode(EncodedTokens& token, int first_head, int head_count, int from, int to) const;
  /// What kv heads [first, first + count) of one token stand for, `[count, head_dim]`.
  void decode(const EncodedTokens& token, int first_head, int head_count, int tier, std::span<float> x) const;
  /// What a token that stays exact becomes.
  void round_exact(std::span<float> x) const { encoders_.front().round_exact(x); }

 private:
  const std::uint8_t* table(int from, int to, int channel) const;

  int head_dim_, width_, book_channels_;                        ///< channels that share a codebook
  std::vector<SideEncoder> encoders_;                           ///< by tier
  std::vector<std::vector<std::vector<std::uint8_t>>> tables_;  ///< [from · tiers + to][codebook][code]
};

}  // namespace kvq
