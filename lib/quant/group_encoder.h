#pragma once
// Tokens of one layer and side to codes for the recipes that are not streaming (recipe_traits.h): range_finder.h finds
// ranges and exact values, codes are those of encoder.h. What SideSimulator gives back is what these codes say.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/encoder.h>
#include <kvq/quant/range_finder.h>

namespace kvq {

/// Built once per layer and side; const and thread-safe. Not for block formats, nor for range=window.
class GroupEncoder {
 public:
  /// Throws Mismatch when thresholds or codebooks do not have the sizes that the recipe needs.
  explicit GroupEncoder(const SideQuantizer& quantizer, SimdLevel level = best_simd_level());

  /// `x`: `[tokens, kv_heads, head_dim]`, finite, of positions `first_position` on; a call must not cut a group of
  /// tokens, but may begin or end where the tokens to be coded do. Throws ExactOverflow.
  void encode(std::span<const float> x, std::int64_t first_position, EncodedTokens& out) const;
  /// The same with ranges `[kv_heads, head_dim]` that are there already, for tokens that come to a group which was
  /// closed before: values outside take end codes. Axis channel-group without topk.
  void encode_within(std::span<const float> x, std::span<const float> zero, std::span<const float> scale,
                     EncodedTokens& out) const;

 private:
  /// Channels that share a codebook.
  struct Segment {
    int begin, count;
    std::vector<float> boundaries;
  };
  void put(std::span<const float> x, const FoundRanges& found, EncodedTokens& out) const;

  RangeFinder finder_;
  const EncodeLoops& loops_;
  int bits_;
  float to_stored_, from_stored_;
  std::vector<Segment> segments_;
};

}  // namespace kvq
