#pragma once
// How pages hold head vectors of formats of their own (has_own_format()): rows of codes, one code of every token each,
// and fp16 scales beside them. What a codec packs token by token stands channel by channel there, so that it is read
// like the codes of any other recipe.

#include <cstdint>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

/// Neighbouring rows of one width.
struct RowRun {
  int scales = 0;  ///< fp16 numbers that a codec writes before these codes
  int count = 0;   ///< rows; codes of a head vector
  int bits = 0;    ///< 1 to 8
};

/// Of one head vector, in the order in which its codec writes it.
struct HeadRows {
  std::vector<RowRun> runs;

  int scales() const;
  int rows() const;
  std::int64_t bits() const;  ///< of its codes
};

/// q4_0, q8_0: a scale for each block. fp8: none. turbo: norms, codes and signs of each part (turbo_codec.h). Codecs of
/// single rows (vector_sizes.h). None for codes_blocks(), whose bytes lie apart from the pages.
HeadRows head_rows(const SideRecipe& side, int head_dim);

}  // namespace kvq
