#pragma once
// A matrix of quantized weights: one codebook per row (output channel), codes of b bits, and a few exact weights in a
// sparse matrix by rows (CSR) which replace what the codes there say. SqueezeLLM's form (arXiv 2306.07629, section 4).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvq {

/// Columns of exact weights are stored in 16 bits.
inline constexpr int kMostWeightColumns = 1 << 16;

struct WeightMatrix {
  int rows = 0, columns = 0, bits = 0;
  int exponent = 0;                      ///< centroids and exact weights are fp16 of x · 2^-exponent
  std::vector<std::uint16_t> codebooks;  ///< `[rows, 2^bits]` fp16, ascending
  std::vector<std::uint8_t> codes;       ///< `[rows, row_bytes()]`, below
  std::vector<std::int32_t> row_start;   ///< `[rows + 1]`: exact weights of row r are [row_start[r], row_start[r + 1])
  std::vector<std::uint16_t> sparse_columns;  ///< `[exact weights]`, ascending within a row
  std::vector<std::uint16_t> sparse_values;   ///< `[exact weights]` fp16

  int levels() const { return 1 << bits; }
  /// Code c of a row has bits c · b and up, counted from the lowest bit of the row's first byte; rows begin at bytes.
  /// Codes of exact weights are 0.
  std::int64_t row_bytes() const { return (std::int64_t{columns} * bits + 7) / 8; }
  std::int64_t weights() const { return std::int64_t{rows} * columns; }

  void set_code(int row, int column, int code);
  /// The weights of a row as fp32, `[columns]`.
  void decode_row(int row, std::span<float> out) const;
  /// Everything that the matrix needs: codes, codebooks, exact weights with their columns and row starts, exponent.
  std::int64_t counted_bytes() const;
  bool operator==(const WeightMatrix&) const = default;
};

/// What cannot be true of a matrix of this shape: sizes, order of centroids, NaN or Inf, row starts, columns. Empty
/// when all is well.
std::string problem_of(const WeightMatrix& matrix);

}  // namespace kvq
