#pragma once
// What rows take, and which of them are coded together: what follows from a recipe and the width of rows alone, without
// tables. Caches count by this.

#include <cstdint>

#include <kvq/vector/vector_recipe.h>

namespace kvq {

/// VectorCodec::block_rows(): the distance of anchors, the page of lowrank= or entropy=, else 1.
std::int64_t block_rows(const VectorRecipe& recipe);
/// Whether a block can only be coded when all of its rows are there (lowrank=).
bool needs_whole_blocks(const VectorRecipe& recipe);
/// Whether blocks of as many rows can differ in size: entropy=, delta with other bits for anchors.
bool has_varying_blocks(const VectorRecipe& recipe);

/// A row of a codec whose rows stand by themselves; of the row codec within others (delta: of a delta).
struct RowSizes {
  int scales = 0;  ///< fp16 numbers
  std::int64_t code_bytes = 0;
  std::int64_t bytes() const { return 2 * scales + code_bytes; }
};
RowSizes row_sizes(const VectorRecipe& recipe, int dim);

/// Bytes of a block of `rows` rows, at most block_rows(): exact, or the most where it varies. 0 for none.
std::int64_t most_block_bytes(const VectorRecipe& recipe, int dim, std::int64_t rows);

}  // namespace kvq
