#pragma once
// A codec whose error over a page of rows is corrected by its best approximation of rank r (nearly; leading_svd.h):
// x̂ = base + Σ_k a_k b_kᵀ, with the left and right singular vectors of the residual, each times √σ_k, quantized to
// integers of `factor_bits` bits.
//
// A block is the base's bytes of `page` rows, then for each k the scale (fp16) and codes of a_k, `[rows]`, and of b_k,
// `[dim]`, codes packed and padded to whole bytes. Factors take r (rows + dim) factor_bits + 32 r bits: with 128 rows
// of 128 channels and 8 bits 0.126 bits per value for each rank. A page of fewer rows than r has so many factors only.

#include <memory>

#include <kvq/vector/vector_codec.h>

namespace kvq {

struct LowRankOptions {
  int rank = 4;         ///< at least 1
  int page = 128;       ///< rows of a block
  int factor_bits = 8;  ///< 2 to 8
};

class LowRankCodec : public VectorCodec {
 public:
  /// `base`: of single rows (block_rows() 1), every row the same number of bytes.
  LowRankCodec(std::shared_ptr<const VectorCodec> base, LowRankOptions options);

  int dim() const override { return base_->dim(); }
  std::int64_t block_rows() const override { return options_.page; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;

 private:
  std::size_t factor_bytes(std::size_t rows) const;

  std::shared_ptr<const VectorCodec> base_;
  LowRankOptions options_;
  std::size_t row_bytes_;  ///< of the base
};

}  // namespace kvq
