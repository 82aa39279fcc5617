#pragma once
// Ranges and exact values of consecutive tokens for every recipe that is not streaming (recipe_traits.h): ranges per
// group of channels or of tokens, thresholds beside online ranges, a fixed number of outliers beside static ones,
// integer zero points. What it finds is what a cache would store; encoding, decoding and fitting all take it from here.
//
// Outliers. Rule threshold: x < lower or x > upper of the channel; a cap keeps those of the largest excess (encoder.h).
// Rule topk: the k largest, then the k smallest of the rest, ties to the lower channel or token. Online on token axes:
// of the token's values. Static: of the token's x_hat. Channel-group: of a channel's values in the group, k from the
// fraction of `group`. 2k >= number of values makes all exact.
//
// Online ranges are those of the values that are not exact; where there is none, zero and scale are 0.
//   zero=half     zero = half(0.5 min + 0.5 max), scale = half(max(max - zero, zero - min)), as on axis token
//   zero=integer  step = half((max - min) / L), point = clamp(round(-min / step), 0, L) with L = 2^bits - 1 (Atom; step
//                 at least 1e-5 / L); zero = (L / 2 - point) * step, scale = L / 2 * step. The point takes `bits` bits.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/encode_loops.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

struct FoundRanges {
  std::vector<float> zero, scale, inverse;  ///< `[rows, width]`; inverse: 1 / scale, or 0 where that is not finite
  std::vector<std::int32_t> row;            ///< `[tokens]`: a token's row
  std::vector<std::uint8_t> exact;          ///< `[tokens, width]`
  std::vector<std::uint32_t> exact_count;   ///< `[tokens]`
  /// What is stored of online ranges, `[tokens, ranges]`, or `[groups, width]` on axis channel-group: zero and scale,
  /// or with zero=integer the step, all scaled fp16; and then the zero point.
  std::vector<std::uint16_t> stored;
  std::vector<std::uint8_t> zero_point;
};

/// Const and thread-safe.
class RangeFinder {
 public:
  /// Throws Mismatch when thresholds do not have the size that the recipe needs. Not for range=window, nor for block
  /// formats.
  explicit RangeFinder(const SideQuantizer& quantizer, SimdLevel level = best_simd_level());

  int width() const { return width_; }
  /// Tokens of one unit of work. A call must not cut a group of tokens: it begins and ends at multiples of this, or
  /// where the tokens to be coded do.
  std::int64_t unit_tokens() const;
  /// `x`: `[tokens, width]`, finite, of positions `first_position` on. Throws ExactOverflow (token relative to `x`)
  /// when a range does not fit.
  void find(std::span<const float> x, std::int64_t first_position, FoundRanges& found) const;
  /// Exact values only, and row 0 for all tokens. Axis channel-group without topk.
  void find_exact(std::span<const float> x, FoundRanges& found) const;

 private:
  struct Range {
    float zero, scale;
    std::uint16_t stored[2] = {};  ///< zero and scale, or the step
    std::uint8_t zero_point = 0;
  };
  void count_exact(FoundRanges& found) const;
  void mark_thresholds(std::span<const float> x, FoundRanges& found) const;
  void mark_tokens(std::span<const float> x, FoundRanges& found) const;
  void mark_columns(std::span<const float> x, std::int64_t tokens, std::span<std::uint8_t> exact) const;
  void token_ranges(std::span<const float> x, FoundRanges& found) const;
  void group_ranges(std::span<const float> x, std::int64_t first_position, FoundRanges& found) const;
  void keep(const Range& range, FoundRanges& found) const;
  /// False when the range does not fit.
  bool store(float minimum, float maximum, Range& range) const;
  [[noreturn]] void fail_range(std::span<const float> x, std::int64_t first_token, std::int64_t tokens,
                               int first_channel, int channels, float minimum, float maximum) const;

  const EncodeLoops& loops_;
  SideRecipe recipe_;
  int width_;
  int per_end_, cap_;
  float to_stored_, from_stored_;
  std::vector<float> lower_, upper_, zero_, inverse_, scale_;  ///< of the thresholds
};

}  // namespace kvq
