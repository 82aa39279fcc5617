#pragma once
// Decode attention over packed pages on the GPU: for every sequence of a batch one query per head attends to all tokens
// of its cache.
//
//   scores  = softmax_scale * query . RoPE(key, position)       keys as decoded, before RoPE; query after RoPE
//   output  = softmax(scores) . value                            values as they are stored: rotated ones come out
//   rotated
//
// Keys have ranges per channel, values ranges per token; outliers and sinks as kernels/layout says. Everything here is
// plain data: device memory belongs to the caller, launches go to the caller's stream, nothing is allocated, nothing
// throws. Works in CUDA graphs.

#include <cstddef>
#include <cstdint>

#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/layout/page.h>

struct CUstream_st;

namespace kvq::cuda {

using Stream = CUstream_st*;  ///< cudaStream_t

enum class Number : std::int32_t { Half, Bfloat16, Float };

enum class Status : std::int32_t {
  Ok,
  UnsupportedHeadDim,   ///< not 64, 80, 96, 128 or 256
  UnsupportedHeads,     ///< heads is not a multiple of kv_heads, or more than 8 query heads per kv head
  UnsupportedSide,      ///< keys with ranges per token, values with ranges per channel, bits outside 1 … 8
  TooMuchSharedMemory,  ///< this device's blocks have too little for this shape
  WorkspaceTooSmall,
  RopeTooShort,  ///< RopeTables do not reach max_length
  LaunchFailed,  ///< cudaGetLastError() says why
};

/// What a side needs beside its pages. Device memory.
struct SideTables {
  const float* zero = nullptr;     ///< `[kv_heads, head_dim]`; keys only
  const float* scale = nullptr;    ///< `[kv_heads, head_dim]`; keys only
  const float* decoded = nullptr;  ///< `[books, 2^bits]`: Codebook::decoded; `[books, kRowLevels]` with `rows`
  std::int32_t books = 1;          ///< 1 or kv_heads
  std::int32_t exponent = 0;       ///< stored fp16 numbers are x * 2^-exponent
  /// `[kv_heads, head_dim]`, of both sides or of neither: rows of widths of their own. Values: all of page.bits, or of
  /// `levels`.
  const RowInfo* rows = nullptr;
  std::int32_t levels = 0;  ///< values: 3, 5, 10 or 20, three codes together; 0: none
};

/// Rotation angles of one model, built once by build_rope_tables(). Device memory.
struct RopeTables {
  const std::uint64_t* turns = nullptr;        ///< `[head_dim / 2]`, turns per position in units of 2^-64
  const std::uint32_t* key_angles = nullptr;   ///< cos and sin within a page, as the kernel's lanes read them
  const std::uint32_t* ratios = nullptr;       ///< second coefficients of slow pairs over the first ones
  const std::uint32_t* base_angles = nullptr;  ///< cos and sin of every page
  std::int32_t fast_steps = 0;                 ///< the first 8 * so many pairs may turn far within a page
  std::int64_t tokens = 0;                     ///< positions covered
};

/// Caches of one layer of all sequences of a batch. Device memory.
struct PackedLayer {
  layout::PageLayout page;
  const std::uint8_t* pages = nullptr;         ///< page p begins at p * page.bytes; 16-byte aligned
  const std::uint32_t* block_table = nullptr;  ///< `[batch, block_table_stride]`, pages of a sequence in order
  std::int64_t block_table_stride = 0;
  const std::int32_t* lengths = nullptr;       ///< `[batch]` tokens, may differ, may be 0
  const std::uint8_t* key_overflow = nullptr;  ///< blocks of layout::overflow_block(page.key)
  std::int32_t sinks = 0;
  const std::uint16_t* sink_keys = nullptr;    ///< `[batch, sinks, kv_heads, head_dim]` scaled fp16
  const std::uint16_t* sink_values = nullptr;  ///< same shape
  /// Numbers from one sequence's sinks to the next one's; -1: sinks * kv_heads * head_dim. With 0, and a
  /// block_table_stride of 0, the rows of a batch are queries of one sequence, each with a length of its own.
  std::int64_t sink_stride = -1;
  SideTables key, value;
};

struct DecodeAttention {
  PackedLayer cache;
  std::int32_t batch = 0, heads = 0;
  std::int64_t max_length = 0;  ///< no sequence is longer; decides the split over the context
  const void* query = nullptr;  ///< `[batch, heads, head_dim]`, rotated to its own position
  void* output = nullptr;       ///< `[batch, heads, head_dim]`
  Number query_type = Number::Half, output_type = Number::Half;
  RopeTables rope;
  float softmax_scale = 0.0f;
  std::uint32_t* arrivals = nullptr;  ///< `[batch, heads]`, zeros before a launch, and again after it
  void* workspace = nullptr;          ///< decode_workspace_bytes(), 16-byte aligned; contents do not matter
  std::size_t workspace_bytes = 0;
  std::int32_t splits = 0;  ///< parts that a sequence is cut into; 0: chosen by max_length, batch and the device
};

/// For the same arguments as the launch; pointers are not looked at.
std::size_t decode_workspace_bytes(const DecodeAttention& arguments);

Status decode_attention(const DecodeAttention& arguments, Stream stream);

/// Device memory for `tokens` positions.
std::size_t rope_table_bytes(int head_dim, std::int64_t tokens);

/// `inverse_frequencies`: host memory, `[head_dim / 2]` radians per position; 0 for pairs that do not rotate (and for
/// keys that were rotated before they were packed). `memory`: rope_table_bytes() of device memory, 256-byte aligned.
Status build_rope_tables(const double* inverse_frequencies, int head_dim, std::int64_t tokens, void* memory,
                         RopeTables& tables, Stream stream);

}  // namespace kvq::cuda
