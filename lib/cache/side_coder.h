#pragma once
// Tokens to codes for every recipe that packed caches can hold, and to the exact form of sinks and of tokens that wait.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvq/quant/encoder.h>
#include <kvq/quant/group_encoder.h>
#include <kvq/quant/head_coder.h>

namespace kvq {

/// Built once per layer and side; const and thread-safe.
class SideCoder {
 public:
  /// Throws Mismatch where the quantizer's parts do not fit its recipe.
  explicit SideCoder(const SideQuantizer& quantizer);

  /// `x`: `[tokens, kv_heads, head_dim]` of positions `first_position` on, whole groups of tokens but for those at the
  /// start of a sequence. Throws ExactOverflow.
  void encode(std::span<const float> x, std::int64_t first_position, EncodedTokens& out) const;
  /// As GroupEncoder::encode_within().
  void encode_within(std::span<const float> x, std::span<const float> zero, std::span<const float> scale,
                     EncodedTokens& out) const;

  /// Scaled fp16. Throws ExactOverflow.
  std::vector<std::uint16_t> to_exact(std::span<const float> x) const;
  float from_exact(std::uint16_t half) const;

 private:
  std::optional<SideEncoder> streaming_;
  std::optional<GroupEncoder> grouped_;
  std::optional<HeadCoder> heads_;
  std::size_t width_;
  float to_stored_, from_stored_;
};

}  // namespace kvq
