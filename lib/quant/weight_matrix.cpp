#include <kvq/quant/weight_matrix.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

bool is_finite(std::uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

}  // namespace

void WeightMatrix::set_code(int row, int column, int code) {
  const std::int64_t bit = std::int64_t{column} * bits;
  std::uint8_t* at = codes.data() + row * row_bytes() + bit / 8;
  const unsigned shifted = static_cast<unsigned>(code) << (bit % 8);
  at[0] = static_cast<std::uint8_t>(at[0] | (shifted & 0xffu));
  if (bit % 8 + bits > 8) at[1] = static_cast<std::uint8_t>(at[1] | (shifted >> 8));
}

void WeightMatrix::decode_row(int row, std::span<float> out) const {
  KVQ_ASSERT(static_cast<int>(out.size()) == columns && row >= 0 && row < rows);
  const float unit = power_of_two(exponent);
  float values[256];
  for (int level = 0; level < levels(); ++level)
    values[level] = half_to_float(codebooks[static_cast<std::size_t>(row) * levels() + level]) * unit;
  const std::uint8_t* packed = codes.data() + row * row_bytes();
  const unsigned mask = static_cast<unsigned>(levels()) - 1;
  for (int column = 0; column < columns; ++column) {
    const std::int64_t bit = std::int64_t{column} * bits;
    unsigned word = packed[bit / 8];
    if (bit % 8 + bits > 8) word |= static_cast<unsigned>(packed[bit / 8 + 1]) << 8;
    out[column] = values[(word >> (bit % 8)) & mask];
  }
  for (std::int32_t entry = row_start[row]; entry < row_start[row + 1]; ++entry)
    out[sparse_columns[entry]] = half_to_float(sparse_values[entry]) * unit;
}

std::int64_t WeightMatrix::counted_bytes() const {
  return static_cast<std::int64_t>(codes.size() + sizeof(std::uint16_t) * codebooks.size() +
                                   sizeof(std::int32_t) * row_start.size() +
                                   2 * sizeof(std::uint16_t) * sparse_values.size()) +
         1;
}

std::string problem_of(const WeightMatrix& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.rows), levels = static_cast<std::size_t>(matrix.levels());
  if (matrix.codebooks.size() != rows * levels || matrix.row_start.size() != rows + 1 ||
      static_cast<std::int64_t>(matrix.codes.size()) != matrix.rows * matrix.row_bytes() ||
      matrix.sparse_columns.size() != matrix.sparse_values.size())
    return "parts do not fit each other";
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t level = 0; level < levels; ++level) {
      const std::uint16_t half = matrix.codebooks[row * levels + level];
      if (!is_finite(half)) return fmt::format("'codebooks' holds NaN or infinity at [{}, {}]", row, level);
      if (level > 0 && half_to_float(half) < half_to_float(matrix.codebooks[row * levels + level - 1]))
        return fmt::format("'codebooks' does not ascend at [{}, {}]", row, level);
    }
  }
  if (matrix.row_start.front() != 0 ||
      matrix.row_start.back() != static_cast<std::int32_t>(matrix.sparse_values.size()))
    return fmt::format("'row_start' runs from {} to {}, 0 to {} is needed", matrix.row_start.front(),
                       matrix.row_start.back(), matrix.sparse_values.size());
  for (std::size_t row = 0; row < rows; ++row) {
    if (matrix.row_start[row + 1] < matrix.row_start[row]) return fmt::format("'row_start' falls at [{}]", row + 1);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::int32_t entry = matrix.row_start[row]; entry < matrix.row_start[row + 1]; ++entry) {
      if (matrix.sparse_columns[entry] >= matrix.columns ||
          (entry > matrix.row_start[row] && matrix.sparse_columns[entry] <= matrix.sparse_columns[entry - 1]))
        return fmt::format("'sparse_columns' holds {} at [{}], ascending numbers below {} are needed",
                           matrix.sparse_columns[entry], entry, matrix.columns);
      if (!is_finite(matrix.sparse_values[entry]))
        return fmt::format("'sparse_values' holds NaN or infinity at [{}]", entry);
    }
  }
  return "";
}

}  // namespace kvq
