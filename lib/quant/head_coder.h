#pragma once
// Head vectors of formats of their own (has_own_format()) to rows of codes and scales (head_rows.h) and back. Each by
// itself: formats that code them together are VectorBlocks (vector_side.h).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <kvq/quant/encoder.h>
#include <kvq/quant/head_rows.h>
#include <kvq/vector/vector_codec.h>

namespace kvq {

/// Built once per layer and side; const and thread-safe.
class HeadCoder {
 public:
  /// Throws Mismatch where the quantizer's tables do not fit its recipe.
  explicit HeadCoder(const SideQuantizer& quantizer);

  const HeadRows& rows() const { return rows_; }

  /// `x`: `[tokens, kv_heads, head_dim]`, finite. Codes `[tokens, kv_heads, rows]`, scales `[tokens, kv_heads, scales]`
  /// as `token_range`; no outliers. Throws ExactOverflow.
  void encode(std::span<const float> x, EncodedTokens& out) const;

  /// The inverse for tokens of one kv head: codes `[tokens, rows]`, scales `[tokens, scales]`, `x`: `[tokens,
  /// head_dim]`. Throws Io for what encode() does not write.
  void decode(int kv_head, std::span<const std::uint8_t> codes, std::span<const std::uint16_t> scales,
              std::span<float> x) const;

 private:
  void encode_codec(std::span<const float> x, EncodedTokens& out) const;

  CodebookKind kind_;
  int kv_heads_, head_dim_;
  HeadRows rows_;
  std::vector<std::shared_ptr<const VectorCodec>> codecs_;  ///< by kv head; none for block formats
};

}  // namespace kvq
