#pragma once
// One scale for each row, one codebook for all values: the codec that delta, low-rank correction and entropy coding
// wrap.
//
// A row is its scale (the row's norm or its largest magnitude over 2^exponent, as fp16) and the codes of x / scale,
// `bits` each, packed and padded to whole bytes: 16 + bits · dim bits. Codes are chosen with the scale as stored. The
// exponent is the codec's: norms beyond 65504 do occur (values of the last layer of SmolLM2), and so do rows that fp16
// would lose. A row whose scale rounds to 0 decodes to zeros.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <kvq/vector/vector_codec.h>

namespace kvq {

enum class RowScale { Norm, Max };

/// Rows of `x`; throws Numeric naming row and channel of the first value that is not finite.
std::int64_t check_rows(std::span<const float> x, int dim);

/// Bytes of `rows` zero rows: those of any as many where the codec's rate is fixed.
std::size_t zero_block_bytes(const VectorCodec& codec, std::int64_t rows);

/// Scales are stored over 2^exponent; what fp16 then holds fits a float.
inline constexpr int kLeastScaleExponent = -150, kLargestScaleExponent = 112;

/// The exponent that leaves the largest scale of `sample` a factor of 2^7 below what fp16 holds.
int scale_exponent(std::span<const float> sample, int dim, RowScale scale);

/// Scale of a row as it is stored. Throws VectorOverflow naming `row` beyond what fp16 holds.
std::uint16_t half_row_scale(std::span<const float> values, RowScale scale, int exponent, std::int64_t row);
/// What it stands for; 0 also where that is below the least normal float, which has no inverse.
float row_scale(std::uint16_t half, int exponent);

class ScalarCodec : public VectorCodec {
 public:
  /// `levels`: 2 to 256 within [-1, 1], ascending (equal neighbours are allowed: spare levels of a fit).
  ScalarCodec(int dim, RowScale scale, std::vector<float> levels, int exponent = 0);

  int dim() const override { return dim_; }
  void encode(std::span<const float> x, std::vector<std::byte>& out) const override;
  void decode(std::span<const std::byte> bytes, std::span<float> x) const override;

  RowScale scale() const { return scale_; }
  const std::vector<float>& levels() const { return levels_; }
  int bits() const { return bits_; }
  std::size_t row_bytes() const;

  /// Codes of one row, `[dim]`, and its scale. `row` is for messages.
  std::uint16_t quantize(std::span<const float> values, std::int64_t row, std::span<std::uint8_t> codes) const;
  /// The inverse. Throws Io for a scale or a code that quantize() does not give.
  void restore(std::uint16_t half_scale, std::span<const std::uint8_t> codes, std::span<float> values) const;

 private:
  int dim_, bits_, exponent_;
  RowScale scale_;
  std::vector<float> levels_, boundaries_;
};

}  // namespace kvq
