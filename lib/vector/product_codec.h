#pragma once
// Product quantization (Jégou, Douze, Schmid, PAMI 33, 2011): the channels of a row are cut into `subspaces` runs of
// equal length, each coded as the nearest of 2^bits centroids of its own: subspaces · bits bits, and 16 for the row's
// norm where it is divided out. Codes are packed and padded to whole bytes, the norm (fp16) before them.
//
// Centroids are fitted to a sample by k-means++ (Arthur and Vassilvitskii 2007, greedy as in scikit-learn: the best of
// 2 + ln 2^bits candidates each time) and Lloyd's iteration.

#include <cstdint>
#include <memory>

#include <kvq/vector/vector_codec.h>

namespace kvq {

struct ProductOptions {
  int subspaces = 16;   ///< divides dim
  int bits = 8;         ///< 1 to 8
  bool norm = false;    ///< rows are divided by their norm, which is stored
  int iterations = 50;  ///< of Lloyd, at most; it ends earlier when the error falls by less than 1e-4 of itself
  int starts = 0;       ///< k-means from so many starts, the best is taken; 0: 10 for small samples, fewer the more
                        ///< rows · 2^bits there are, 1 from 2^20 on, where starts hardly differ
  std::uint64_t seed = 0;
  int threads = 1;
};

/// What a codec needs.
struct ProductBooks {
  int dim = 0, subspaces = 0, bits = 0;
  bool norm = false;
  int exponent = 0;                    ///< of norms (kvq/vector/scalar_codec.h)
  std::vector<float> centroids;        ///< `[subspaces, 2^bits, dim / subspaces]`
  std::vector<float> channel_weights;  ///< `[dim]`, all 1 without
};

/// Weights: of rows `[rows]` and of channels (Fisher information) `[dim]`; empty means all 1. The error that is made
/// least is Σ w_row w_channel (x - x̂)²; where every weight of a kind is 0, all count as 1. Fewer rows than centroids:
/// the rows themselves, and spare centroids that no row takes. A cluster that loses all its rows is put on the row with
/// the largest error. The same for any number of threads. Throws Usage when `subspaces` does not divide dim, Numeric
/// for values or weights that are not finite or negative weights.
ProductBooks train_product(std::span<const float> x, int dim, std::span<const float> row_weights,
                           std::span<const float> channel_weights, const ProductOptions& options);

class ProductCodec : public VectorCodec {
 public:
  explicit ProductCodec(ProductBooks books);

  int dim() const override { return books_.dim; }
  const ProductBooks& books() const { return books_; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;

 private:
  ProductBooks books_;
};

}  // namespace kvq
