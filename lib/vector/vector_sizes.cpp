#include <kvq/vector/vector_sizes.h>

#include <algorithm>

#include <kvq/vector/bit_rows.h>

namespace kvq {

namespace {

std::int64_t packed(std::int64_t count, int bits) {
  return static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(count), bits));
}

}  // namespace

std::int64_t block_rows(const VectorRecipe& recipe) {
  if (recipe.method == VectorMethod::Delta) return recipe.anchor;
  return recipe.low_rank > 0 || recipe.entropy != EntropyWord::None ? recipe.page : 1;
}

bool needs_whole_blocks(const VectorRecipe& recipe) { return recipe.low_rank > 0; }

bool has_varying_blocks(const VectorRecipe& recipe) {
  return recipe.entropy != EntropyWord::None || (recipe.method == VectorMethod::Delta && recipe.anchor_bits != 0);
}

RowSizes row_sizes(const VectorRecipe& recipe, int dim) {
  if (recipe.method == VectorMethod::Product) return {recipe.norm ? 1 : 0, packed(recipe.subspaces, recipe.bits)};
  return {1, packed(dim, recipe.bits)};
}

std::int64_t most_block_bytes(const VectorRecipe& recipe, int dim, std::int64_t rows) {
  if (rows <= 0) return 0;
  const std::int64_t row = row_sizes(recipe, dim).bytes();
  if (recipe.method == VectorMethod::Delta) {
    const std::int64_t anchor = 2 + packed(dim, recipe.anchor_bits > 0 ? recipe.anchor_bits : recipe.bits);
    return (rows + 7) / 8 + anchor + (rows - 1) * std::max(row, anchor);  // a flag for each; the first is an anchor
  }
  if (recipe.entropy != EntropyWord::None) return 2 * rows + 1 + packed(rows * dim, recipe.bits);
  std::int64_t factors = 0;
  if (recipe.low_rank > 0) {
    const std::int64_t rank = std::min({std::int64_t{recipe.low_rank}, rows, std::int64_t{dim}});
    factors = rank * (4 + packed(rows, recipe.factor_bits) + packed(dim, recipe.factor_bits));
  }
  return rows * row + factors;
}

}  // namespace kvq
