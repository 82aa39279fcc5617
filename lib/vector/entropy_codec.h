#pragma once
// Codes of a ScalarCodec, entropy coded: levels near zero come more often than those at the ends, so that 4 bits carry
// about 3.8. One table serves all pages.
//
// A block is a page of rows: their scales (fp16), a byte that says how the codes follow (0: entropy coded, 1: packed,
// where that is no longer), the codes. A page has no fixed size; the length of its stream follows from decoding it, and
// BlockIndex (kvq/coding/block_index.h) finds pages without.

#include <memory>
#include <variant>

#include <kvq/coding/canonical_huffman.h>
#include <kvq/coding/rans.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

using EntropyTable = std::variant<CanonicalHuffman, RansCoder>;
enum class EntropyCoder { Huffman, Rans };

/// A table for what `scalar` makes of `sample`, `[rows, dim]`. Every level counts once more than it is seen, so that
/// all can be coded.
EntropyTable train_entropy_table(const ScalarCodec& scalar, EntropyCoder coder, std::span<const float> sample);

class EntropyCodec : public VectorCodec {
 public:
  /// `page`: rows of a block. The table has a code for every level. Throws Io where it has not.
  EntropyCodec(std::shared_ptr<const ScalarCodec> scalar, EntropyTable table, int page);

  int dim() const override { return scalar_->dim(); }
  std::int64_t block_rows() const override { return page_; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;
  /// Holds codes; they are entropy coded when it is closed.
  std::unique_ptr<OpenBlock> open_block() const override;

 private:
  class Page;

  std::shared_ptr<const ScalarCodec> scalar_;
  EntropyTable table_;
  int page_;
};

}  // namespace kvq
