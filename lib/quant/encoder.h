#pragma once
// Tokens of one layer and side to codes and back, each token by itself, for recipes that packed caches can hold
// (is_streaming() in recipe_traits.h). Simulated, packed and CUDA caches produce the codes that this produces, so the
// order of floating-point operations here is part of the contract:
//
//   x_hat   = (x - zero) * (1 / scale)
//   code    = number of boundaries < x_hat
//   decoded = zero + scale * decoded[code]
//
// all in fp32, each operation rounded, no FMA. A scale that is 0 (or so small that 1 / scale is infinite) has the
// inverse 0: x_hat is 0, and scale 0 decodes to zero.
//
// Thresholds (range static, any axis: axes that share a range repeat it for their channels): zero = 0.5 lower + 0.5
// upper, scale = 0.5 upper - 0.5 lower, as fp32. With outliers, x < lower or x > upper is exact; without, it takes an
// end code. A cap leaves at most outlier_cap() values of a token exact: those with the largest excess (lower - x or x -
// upper, times 1 / scale; infinite for scale 0), ties to the lower channel; the others take end codes.
//
// Range of the token (axis token, range online): with outliers the k largest values of the token are exact, then the k
// smallest of what is left, ties to the lower channel (so a token of equal values loses its first 2k channels); 2k >=
// width makes all exact, with range 0, 0. Of the rest: zero = half(0.5 min + 0.5 max), scale = half(max(max - zero,
// zero - min)), where half() rounds to fp16(x * 2^-exponent) and back. Taking the scale around the *stored* zero keeps
// both ends inside the range.
//
// rotate=hadamard: all of this happens to head_rotation.h's forward(x), and decoding ends with its inverse(). Feedback,
// icm, widths=pair and levels= choose codes as lane_encoder.h says.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/quant/encode_loops.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Codes of consecutive tokens, `width = kv_heads * head_dim` channels each.
struct EncodedTokens {
  std::int64_t tokens = 0;
  std::vector<std::uint8_t> codes;  ///< `[tokens, width]`; 0 at outliers
  /// `[tokens, 2]` zero and scale as scaled fp16; token axis only. Of group_encoder.h: FoundRanges::stored.
  std::vector<std::uint16_t> token_range;
  std::vector<std::uint32_t> outlier_begin;                   ///< `[tokens + 1]` offsets into the two lists below
  std::vector<std::uint16_t> outlier_channel, outlier_value;  ///< ascending channel within a token; scaled fp16
  std::vector<std::uint8_t> zero_point;                       ///< of group_encoder.h: FoundRanges::zero_point

  std::int64_t outliers() const { return static_cast<std::int64_t>(outlier_channel.size()); }
};

/// Numeric error: an exact value or the range of a token does not fit scaled fp16.
class ExactOverflow : public Error {
 public:
  ExactOverflow(std::int64_t overflow_token, int overflow_channel, float overflow_value, float overflow_limit);
  std::int64_t token;  ///< relative to the first token of the call
  int channel;         ///< `[kv_heads * head_dim]`; of the largest magnitude when it is the range that does not fit
  float value;
  float limit;  ///< largest magnitude that fits
};

/// Built once per layer and side; const and thread-safe.
class SideEncoder {
 public:
  /// Throws Mismatch when thresholds, codebooks or tables do not have the sizes that the recipe needs. `level`: for
  /// tests; all levels give the same bits.
  explicit SideEncoder(const SideQuantizer& quantizer, SimdLevel level = best_simd_level());

  /// `x`: `[tokens, kv_heads, head_dim]`, finite. Throws ExactOverflow; Usage for RangeKind::Window, whose range is
  /// stored nowhere.
  void encode(std::span<const float> x, EncodedTokens& out) const;
  void decode(const EncodedTokens& encoded, std::span<float> x) const;

  /// encode + decode in cache-sized blocks, on `threads` threads; `x` is overwritten. Returns exact values per token
  /// in `outliers_per_token`, `[tokens]`, or `[tokens, parts]` for equal parts of its channels (may be empty to skip).
  /// For RangeKind::Window the range is that of all of `x`: percentiles f/2 and 1 - f/2 of each channel, with f the
  /// fraction of outliers.
  void round_trip(std::span<float> x, int threads, std::span<std::uint32_t> outliers_per_token = {}) const;

  /// What a sink (or recent) token's values become: scaled fp16 and back. Throws ExactOverflow.
  void round_exact(std::span<float> x) const;

 private:
  struct Tables;  ///< per channel zero, scale and inverse; per head boundaries
  std::shared_ptr<const Tables> tables_;
};

/// Number of outliers on *each* end of a token of `width` values: max(1, round(fraction * width / 2)), 0 for fraction
/// 0.
int outliers_per_end(double fraction, int width);

/// Most exact values per token under a cap: ceil(cap * width); `width` for cap 0 (no cap).
int outlier_cap(double cap, int width);

}  // namespace kvq
