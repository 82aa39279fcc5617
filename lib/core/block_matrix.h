#pragma once
// The matrices of a transformer block, the only weights that are ever quantized: what readers of models, artifacts and
// the fit of weights need to know of them, without the model. Row r of a matrix gives output r; rows of Q and K are in
// Hugging Face's channel order.

#include <array>
#include <cstdint>

#include <kvq/core/kv_shape.h>

namespace kvq {

enum class BlockMatrix { Query, Key, Value, Output, Gate, Up, Down };

inline constexpr std::array<BlockMatrix, 7> kBlockMatrices = {
    BlockMatrix::Query, BlockMatrix::Key, BlockMatrix::Value, BlockMatrix::Output,
    BlockMatrix::Gate,  BlockMatrix::Up,  BlockMatrix::Down};

inline const char* block_matrix_name(BlockMatrix matrix) {
  constexpr std::array<const char*, 7> kNames = {"q", "k", "v", "o", "gate", "up", "down"};
  return kNames[static_cast<std::size_t>(matrix)];
}

/// Sizes of a model's blocks. A matrix is `[rows, columns]` = `[outputs, inputs]`.
struct BlockShape {
  KvShape kv;
  int hidden = 0, intermediate = 0;

  int query_width() const { return kv.heads * kv.head_dim; }
  int rows(BlockMatrix matrix) const {
    switch (matrix) {
      case BlockMatrix::Query:
        return query_width();
      case BlockMatrix::Key:
      case BlockMatrix::Value:
        return kv.width();
      case BlockMatrix::Gate:
      case BlockMatrix::Up:
        return intermediate;
      default:
        return hidden;
    }
  }
  int columns(BlockMatrix matrix) const {
    if (matrix == BlockMatrix::Output) return query_width();
    return matrix == BlockMatrix::Down ? intermediate : hidden;
  }
  std::int64_t elements(BlockMatrix matrix) const { return std::int64_t{rows(matrix)} * columns(matrix); }
  std::int64_t layer_elements() const {
    std::int64_t sum = 0;
    for (const BlockMatrix matrix : kBlockMatrices) sum += elements(matrix);
    return sum;
  }
  bool operator==(const BlockShape&) const = default;
};

}  // namespace kvq
