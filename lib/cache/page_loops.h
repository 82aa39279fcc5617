#pragma once
// The inner loops of attention over packed pages, compiled for several instruction sets and chosen at run time.
// Decoding gives the same bits at every level; sums may differ in the last bits.
//
// A block is one kv head of a page, decoded: `[head_dim][64]` floats, one row per channel.

#include <cstdint>

#include <kvq/quant/encode_loops.h>

namespace kvq {

struct PageLoops {
  int lanes;  ///< floats in a vector

  /// Rows of 64 codes -> `[rows][64]`: zero + scale * table[code], each operation rounded; zero and scale `[rows]`.
  /// `table` has 2^bits entries, repeated to 16 at least. Reads up to 16 bytes beyond the codes.
  void (*decode_channels)(const std::uint8_t* codes, int rows, int bits, const float* table, const float* zero,
                          const float* scale, float* out);
  /// The same with zero and scale per token, `[64]`.
  void (*decode_tokens)(const std::uint8_t* codes, int rows, int bits, const float* table, const float* zero,
                        const float* scale, float* out);

  /// Rows of codes with 3, 5, 10 or 20 levels, three of them together (kernels/layout/grouped_codes.h), the rows
  /// without gaps; otherwise like the first, with zero and scale `[rows]`, or like the second, `[64]`. `table` has the
  /// levels, repeated to 16, or to 32 for 20 levels.
  void (*decode_grouped)(const std::uint8_t* codes, int rows, int levels, bool by_token, const float* table,
                         const float* zero, const float* scale, float* out);

  /// Scaled fp16 -> `count` floats: value * factor. `from` need not be aligned.
  void (*halves_to_floats)(const std::uint8_t* from, int count, float factor, float* out);

  /// Rotates rows (pair, pair + pairs) of a block in place; cosine and sine `[pairs][64]`.
  void (*rotate_rows)(float* block, int pairs, const float* cosine, const float* sine);
  /// out = x rotated, `[rows][head_dim]`, all rows by the same angles, `[pairs]`; `backwards`: by the negative angles.
  void (*rotate_vectors)(const float* x, int rows, int head_dim, int pairs, const float* cosine, const float* sine,
                         float* out);

  /// c = a b, or c += a b: a `[rows][depth]` with row stride a_stride, b `[depth][columns]` with b_stride, c with
  /// c_stride; columns are a multiple of 16.
  void (*multiply)(const float* a, int a_stride, int rows, int depth, const float* b, int b_stride, int columns,
                   float* c, int c_stride, bool add);

  /// sums[channel][row][lane] += sum over the tokens of that lane of weights[row][token] * block[channel][token];
  /// weights `[rows][64]`, rows <= kMostLaneRows.
  void (*add_weighted)(const float* weights, int rows, const float* block, int head_dim, float* sums);
  /// out[row][channel] = sum over the lanes.
  void (*sum_lanes)(const float* sums, int rows, int head_dim, float* out, int out_stride);

  /// `[head_dim][64]` -> `[64][out_stride]`.
  void (*transpose)(const float* block, int head_dim, float* out, int out_stride);
  /// x *= factor.
  void (*scale)(float* x, std::int64_t count, float factor);
};

inline constexpr int kMostLaneRows = 8;

const PageLoops& page_loops(SimdLevel level);

}  // namespace kvq
