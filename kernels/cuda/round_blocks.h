#pragma once
// Codes of recipes that round whole head vectors (lib/quant/lane_encoder.h: feedback, icm, widths per pair, levels) and
// of rotated values, on the GPU: the first step of appending them, whose second (quantize_append.h, RoundedTokens) puts
// them into pages. Codes are those of the CPU: the same operations in the same order, each rounded, no FMA.
//
// One warp rounds a head vector: its lanes hold the channels in coding order, `head_dim / 32` each. The error of a
// channel goes to all that follow, so that there are head_dim steps one after the other; the vectors of eight tokens
// share a block and with it what the caches hold of the matrices.

#include <cstdint>

#include <kvq/kernels/cuda/decode_attention.h>

namespace kvq::cuda {

/// Of one side; device memory. Arrays by position are in coding order.
struct RoundTables {
  bool rounds = false;          ///< false: the side is not rounded here, and nothing is written for it
  const float* zero = nullptr;  ///< `[kv_heads, head_dim]`; keys only, as the next four
  const float* scale = nullptr;
  const float* inverse = nullptr;  ///< 1 / scale as the encoder takes it
  const float* lower = nullptr;
  const float* upper = nullptr;     ///< null: no outliers
  const float* rotation = nullptr;  ///< `[kv_heads, head_dim]` head_rotation.h, 1/√block included; or null
  std::int32_t rotation_block = 0;
  const float* boundaries = nullptr;              ///< `[books, kRowLevels]`, +inf behind the last of each
  const float* decoded = nullptr;                 ///< `[books, kRowLevels]`
  const std::int32_t* most_boundaries = nullptr;  ///< `[books]`
  const std::uint8_t* book = nullptr;             ///< `[kv_heads, head_dim]` by channel
  std::int32_t books = 1;
  const std::int32_t* order = nullptr;      ///< `[kv_heads, head_dim]` channel at each position
  const float* updates = nullptr;           ///< `[kv_heads, head_dim, head_dim]` by position; null: no feedback
  const float* hessian = nullptr;           ///< the same; icm only
  const float* inverse_diagonal = nullptr;  ///< `[kv_heads, head_dim]` by position
  std::int32_t icm = 0;
  std::int32_t exponent = 0;
};

/// What one side's tokens become, `[tokens, kv_heads, head_dim]`; device memory of the caller.
struct RoundedTokens {
  std::uint8_t* codes = nullptr;   ///< null: the side is not rounded
  std::uint16_t* exact = nullptr;  ///< at outliers, what is stored of them
  float* x = nullptr;              ///< values as rotated; null: not rotated
};

struct RoundBlocks {
  std::int32_t kv_heads = 0, head_dim = 0;  ///< head_dim at most 256
  std::int64_t tokens = 0;
  const void* key = nullptr;  ///< `[tokens, kv_heads, head_dim]`
  const void* value = nullptr;
  Number type = Number::Float;
  RoundTables key_tables, value_tables;
  RoundedTokens rounded_key, rounded_value;
  float* value_ranges = nullptr;  ///< `[tokens, 2]`, scratch: zero and scale of values
};

Status round_blocks(const RoundBlocks& arguments, Stream stream);

/// What attention summed of rotated values becomes that of the values: `x` `[rows, heads, head_dim]` in place, mixed in
/// blocks of `block` channels and multiplied by `factors` `[heads, head_dim]` (HeadRotation::inverse_factors() of each
/// head's kv head).
Status rotate_back(float* x, std::int64_t rows, int heads, int head_dim, int block, const float* factors,
                   Stream stream);

}  // namespace kvq::cuda
