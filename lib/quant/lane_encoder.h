#pragma once
// Codes for the recipes that plain rounding channel by channel cannot serve: feedback and coordinate descent, widths
// per RoPE pair, 3, 5, 10 or 20 levels. Part of the contract of encoder.h; internal to lib/quant, but for the tables,
// which the GPU works with, too.
//
// Per head vector, channels in coding order j = 0, 1, …; y is a copy of x; every operation fp32, rounded, no FMA:
//
//   feedback   (code_j, q_j) = round(y_j); y_k = y_k - updates_jk * (y_j - q_j) for k > j, in order of j
//   icm        r_k = r_k - H_jk * (q_j - x_j) for all k, in order of j, from r = 0
//              each pass, j from last to first: (code_j, q'_j) = round(q_j + r_j * (1 / H_jj));
//              r_k = r_k - H_jk * (q'_j - q_j) for all k; q_j = q'_j
//
// round() is that of encoder.h with the channel's codebook; an outlier's q is fp16(its argument * 2^-exponent) and
// back, its code 0. Ranges and outliers are found on x before all this.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/lane_loops.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

class LaneEncoder {
 public:
  /// Whether a recipe needs it.
  static bool serves(const SideRecipe& recipe);

  /// Throws Mismatch when codebooks, widths, order or matrices do not have the sizes that the recipe needs.
  LaneEncoder(const SideQuantizer& quantizer, SimdLevel level);

  struct Book {
    std::vector<float> boundaries, decoded;
  };
  /// What codes depend on beside ranges and outliers; matrices by coding position.
  struct Tables {
    std::vector<Book> books;
    std::vector<std::uint8_t> book_of_channel;     ///< `[kv_heads * head_dim]`
    std::vector<std::int32_t> order;               ///< `[kv_heads, head_dim]`
    std::vector<float> updates;                    ///< `[kv_heads, head_dim, head_dim]`, with feedback
    std::vector<float> hessian, inverse_diagonal;  ///< the same and `[kv_heads, head_dim]`, with icm
  };
  const Tables& tables() const { return tables_; }

  struct Batch {
    int tokens = 0;               ///< 1 … kLanes
    const float* x = nullptr;     ///< `[tokens, width]`
    const float* zero = nullptr;  ///< `[width]`, or `[tokens]` for ranges per token; likewise the next two
    const float* scale = nullptr;
    const float* inverse = nullptr;
    const std::uint8_t* mask = nullptr;  ///< `[tokens, width]`, nonzero for outliers; null: none
  };
  /// Buffers of one thread.
  struct Scratch {
    std::vector<float> compensated, restored, residual;  ///< `[head_dim, kLanes]`
    std::vector<std::int32_t> codes;
    std::vector<std::uint16_t> exact;
    std::vector<std::uint32_t> masked;  ///< per coding position a bit per lane
  };
  /// Codes `[tokens, width]`; at outliers 0, and `exact` `[tokens, width]` gets what is stored of them (else untouched;
  /// null without outliers). Throws ExactOverflow, whose token counts from `first_token`.
  void encode(const Batch& batch, std::int64_t first_token, Scratch& scratch, std::uint8_t* codes,
              std::uint16_t* exact) const;
  /// zero + scale * decoded[code] of one token, outliers aside. `zero`, `scale` as in Batch, of this token.
  void decode(const std::uint8_t* codes, const float* zero, const float* scale, float* x) const;

 private:
  struct Lanes;  // what of zero, scale, inverse the lanes of one channel need
  class Head;    // works on the lanes of one kv head
  int book_of(int channel) const { return tables_.book_of_channel[static_cast<std::size_t>(channel)]; }

  const LaneLoops& loops_;
  bool per_token_, feedback_;
  int icm_, kv_heads_, head_dim_;
  float to_stored_, from_stored_;
  Tables tables_;
};

}  // namespace kvq
