#pragma once
// Tokens of one layer and side to codes and back. The one place where rounding happens: simulated, packed and CUDA
// caches produce the codes that this produces, so the order of floating-point operations here is part of the contract:
//   x_hat = (x - zero) * (1 / scale)      code = number of boundaries < x_hat      decoded = zero + scale *
//   decoded[code]
// all in fp32, each operation rounded, no FMA; scale 0 decodes to zero. Ranges per token are rounded to their stored
// fp16 form before they are used.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <kvq/quant/quantizer.h>

namespace kvq {

/// Codes of consecutive tokens, `width = kv_heads * head_dim` channels each.
struct EncodedTokens {
  std::int64_t tokens = 0;
  std::vector<std::uint8_t> codes;           ///< `[tokens, width]`; 0 at outliers
  std::vector<std::uint16_t> token_range;    ///< `[tokens, 2]` zero and scale as scaled fp16; token axis only
  std::vector<std::uint32_t> outlier_begin;  ///< `[tokens + 1]` offsets into the two lists below
  std::vector<std::uint16_t> outlier_channel, outlier_value;  ///< ascending channel within a token; scaled fp16

  std::int64_t outliers() const { return static_cast<std::int64_t>(outlier_channel.size()); }
};

/// Built once per layer and side; const and thread-safe.
class SideEncoder {
 public:
  explicit SideEncoder(const SideQuantizer& quantizer);

  /// `x`: `[tokens, kv_heads, head_dim]`, finite. Throws Numeric when an exact value or a range does not fit scaled
  /// fp16 (gives channel and token relative to `x`, and the value).
  void encode(std::span<const float> x, EncodedTokens& out) const;
  void decode(const EncodedTokens& encoded, std::span<float> x) const;

  /// encode + decode in cache-sized blocks, on `threads` threads; `x` is overwritten. Returns exact values per token
  /// in `outliers_per_token` (may be empty to skip). For RangeKind::Window the range is that of all of `x`.
  void round_trip(std::span<float> x, int threads, std::span<std::uint32_t> outliers_per_token = {}) const;

  /// What a sink (or recent) token's values become: scaled fp16 and back. Throws Numeric as encode.
  void round_exact(std::span<float> x) const;

 private:
  struct Tables;  ///< per channel zero, scale and inverse; per head boundaries
  std::shared_ptr<const Tables> tables_;
};

/// Number of outliers on *each* end of a token of `width` values: max(1, round(fraction * width / 2)), 0 for fraction
/// 0.
int outliers_per_end(double fraction, int width);

}  // namespace kvq
