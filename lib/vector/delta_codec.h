#pragma once
// Prediction from the row before: δ_t = x_t - x̂_{t-1}, with x̂ as decoded, so that errors do not add up.
//
// A block is `anchor` rows: a bit for each row (1: an anchor, coded by itself; the first row is one), padded to whole
// bytes, then the rows. A row is an anchor too where |δ| > threshold · |x|: there the predecessor says nothing. Deltas
// and anchors each have a codec of single rows of a fixed size, which may be the same.
//
// Random access costs what prediction saves: row t needs its block from the first row on, (anchor - 1) / 2 rows more on
// average, each a decoding and an addition of `dim` values; a cache that reads all rows in order pays the additions
// only. Rows cannot be decoded side by side, and rotated positions (RoPE) cannot be folded in before the sum.

#include <memory>

#include <kvq/vector/vector_codec.h>

namespace kvq {

struct DeltaOptions {
  int anchor = 64;         ///< rows of a block, at least 1
  float threshold = 1.0f;  ///< of |δ| / |x|, >= 0; from 1 on a delta is as large as what it stands for
};

class DeltaCodec : public VectorCodec {
 public:
  /// Both codecs: the same dim, block_rows() 1, every row the same number of bytes.
  DeltaCodec(std::shared_ptr<const VectorCodec> deltas, std::shared_ptr<const VectorCodec> anchors,
             DeltaOptions options);

  int dim() const override { return anchors_->dim(); }
  std::int64_t block_rows() const override { return options_.anchor; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;
  std::unique_ptr<OpenBlock> open_block() const override;

  /// The deltas that encode() would quantize, for fitting their codec: `[rows, dim]`, rows that become anchors left
  /// out.
  std::vector<float> deltas_of(std::span<const float> x) const;

 private:
  class Block;
  /// Calls visit(block, x of the block) for each.
  template <typename Visit>
  void for_each_block(std::span<const float> x, Visit visit) const;

  std::shared_ptr<const VectorCodec> deltas_, anchors_;
  DeltaOptions options_;
  std::size_t delta_bytes_, anchor_bytes_;
};

}  // namespace kvq
