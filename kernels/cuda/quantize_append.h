#pragma once
// Appends tokens to packed pages on the GPU: one token per sequence while decoding, or any number (prefill). The bytes
// are those that the CPU writes: the order of floating-point operations is that of lib/quant/encoder.h, without FMA.
//
// Pages must be in the block table beforehand; those that a first token begins are cleared here. Overflow blocks are
// taken from the end of a list of free ones: the caller sees to it that there are enough before the launch
// (append_overflow_blocks() at worst) and reads AppendReport afterwards. Nothing is allocated, nothing throws.

#include <cstdint>

#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/round_blocks.h>

namespace kvq::cuda {

/// What encoding a side needs. Device memory.
struct EncodeTables {
  const float* lower = nullptr;       ///< `[kv_heads, head_dim]`; keys only
  const float* upper = nullptr;       ///< `[kv_heads, head_dim]`; keys only
  const float* boundaries = nullptr;  ///< `[books, 2^bits - 1]`: Codebook::boundaries()
  std::int32_t books = 1;             ///< 1 or kv_heads
  std::int32_t exponent = 0;          ///< stored fp16 numbers are x * 2^-exponent
  std::int32_t outlier_cap = 0;       ///< keys: most outliers of a token (kvq::outlier_cap()); 0: the width
  const RowInfo* rows = nullptr;      ///< `[kv_heads, head_dim]`; null: all rows have page.bits
  std::int32_t levels = 0;            ///< 3, 5, 10 or 20: three codes together
};

/// Device memory, set to all ones (0xff) by the caller before the first launch; survives many launches.
struct AppendReport {
  /// Smallest (token of the call << 17 | side << 16 | channel) whose value does not fit scaled fp16; all ones: none.
  /// The channel is 65535 when it is the range of a token that does not fit.
  unsigned long long overflow;
  unsigned long long blocks_missing;  ///< all ones: there were enough overflow blocks
};

struct QuantizeAppend {
  layout::PageLayout page;
  std::uint8_t* pages = nullptr;
  const std::uint32_t* block_table = nullptr;  ///< `[batch, block_table_stride]`
  std::int64_t block_table_stride = 0;
  const std::int32_t* lengths = nullptr;  ///< `[batch]` tokens before this call
  const std::int32_t* first = nullptr;    ///< `[batch + 1]` rows of each sequence in key and value
  std::int32_t batch = 0;
  std::int32_t most_tokens = 0;  ///< of one sequence in this call
  const void* key = nullptr;     ///< `[tokens, kv_heads, head_dim]`, before RoPE
  const void* value = nullptr;   ///< same shape
  Number type = Number::Float;
  EncodeTables key_tables, value_tables;
  RoundedTokens rounded_key, rounded_value;  ///< by round_blocks(), of the same tokens
  std::int32_t sinks = 0;
  std::uint16_t* sink_keys = nullptr;    ///< `[batch, sinks, kv_heads, head_dim]`
  std::uint16_t* sink_values = nullptr;  ///< same shape; rotated, where values are
  std::uint8_t* key_overflow = nullptr;
  const std::uint32_t* free_blocks = nullptr;  ///< numbers of free overflow blocks
  std::int32_t* free_count = nullptr;          ///< how many; lowered here
  AppendReport* report = nullptr;
};

/// Overflow blocks that `tokens` new tokens of one sequence take at worst.
std::int64_t append_overflow_blocks(const layout::SideShape& key, std::int64_t tokens);

Status quantize_append(const QuantizeAppend& arguments, Stream stream);

}  // namespace kvq::cuda
