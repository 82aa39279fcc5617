// Schemes, codes and exact weights of quantized matrices, against bits counted by hand.
#include "support/catch.h"

#include <cmath>
#include <functional>
#include <limits>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/weight_matrix.h>
#include <kvq/quant/weight_scheme.h>

using namespace kvq;

namespace {

WeightMatrix empty_matrix(int rows, int columns, int bits, int exponent = 0) {
  WeightMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.bits = bits;
  matrix.exponent = exponent;
  for (int row = 0; row < rows; ++row)
    for (int level = 0; level < matrix.levels(); ++level)
      matrix.codebooks.push_back(float_to_half(static_cast<float>(level + 100 * row)));
  matrix.codes.assign(static_cast<std::size_t>(rows * matrix.row_bytes()), 0);
  matrix.row_start.assign(static_cast<std::size_t>(rows) + 1, 0);
  return matrix;
}

std::string refusal(const std::string& text) {
  try {
    parse_weight_scheme(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Schemes of weights: short form and back, and what is none") {
  for (const std::string text : {"w4-s0.45%", "w3-s0.45%", "w4", "w1", "w8-s50%", "w2-s0.001%"})
    CHECK(short_form(parse_weight_scheme(text)) == text);
  CHECK(parse_weight_scheme("w4-s0.45%").bits == 4);
  CHECK(parse_weight_scheme("w4-s0.45%").sparse == Approx(0.0045).epsilon(1e-15));
  CHECK(short_form(parse_weight_scheme("w3-s0.450%")) == "w3-s0.45%");
  CHECK(slug(parse_weight_scheme("w4-s0.45%")) == "w4-s0.45pct");
  CHECK(slug(parse_weight_scheme("w4")) == "w4");
  for (const std::string text : {"", "w", "w0", "w9", "4", "nuq4", "w16", "w4-", "w4-s", "w4-s%", "w4-s0%", "w4-s-1%",
                                 "w4-s51%", "w4-snan%", "w4-s1", "w4-s1%%", "w4-s1e999%", "w4 -s1%", "w4-s1%x"}) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring("'" + text + "'") && ContainsSubstring("w4-s0.45%"));
  }
}

TEST_CASE("Codes lie in a row bit by bit from the lowest of the first byte, rows begin at bytes") {
  WeightMatrix matrix = empty_matrix(2, 5, 3);
  CHECK(matrix.row_bytes() == 2);  // 15 bits
  const int codes[2][5] = {{1, 2, 3, 4, 5}, {7, 0, 6, 0, 1}};
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 5; ++column) matrix.set_code(row, column, codes[row][column]);
  // 001, 010, 011, 100, 101 from the lowest bit: 0b1101'0001 and 0b0101'1000; 111, 000, 110, 000, 001.
  CHECK(matrix.codes == std::vector<std::uint8_t>{0xd1, 0x58, 0x87, 0x11});
  std::vector<float> row(5);
  matrix.decode_row(0, row);
  CHECK(row == std::vector<float>{1, 2, 3, 4, 5});
  matrix.decode_row(1, row);
  CHECK(row == std::vector<float>{107, 100, 106, 100, 101});
}

TEST_CASE("Every width gives back the codes that were set, and exact weights replace them") {
  Rng rng(3);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int columns : {1, 7, 8, 33}) {
      WeightMatrix matrix = empty_matrix(3, columns, bits, -2);
      std::vector<std::vector<float>> expected(3);
      for (int row = 0; row < 3; ++row) {
        for (int column = 0; column < columns; ++column) {
          const auto code = static_cast<int>(rng.below(static_cast<std::uint64_t>(matrix.levels())));
          matrix.set_code(row, column, code);
          expected[row].push_back(0.25f * static_cast<float>(code + 100 * row));
        }
      }
      matrix.row_start = {0, 0, 1, 1};  // one exact weight, at the end of row 1
      matrix.sparse_columns = {static_cast<std::uint16_t>(columns - 1)};
      matrix.sparse_values = {float_to_half(-5.5f)};
      expected[1].back() = -1.375f;
      REQUIRE(problem_of(matrix).empty());
      for (int row = 0; row < 3; ++row) {
        std::vector<float> found(static_cast<std::size_t>(columns));
        matrix.decode_row(row, found);
        CHECK(found == expected[row]);
      }
      // Codes, 16 bits a level, 32 a row start, 32 an exact weight, 8 the exponent.
      CHECK(matrix.counted_bytes() == 3 * ((columns * bits + 7) / 8) + 2 * 3 * (1 << bits) + 4 * 4 + 4 + 1);
    }
  }
}

TEST_CASE("What cannot be true of a matrix is named with its place") {
  const auto problem = [](const std::function<void(WeightMatrix&)>& change) {
    WeightMatrix matrix = empty_matrix(2, 6, 2);
    matrix.row_start = {0, 2, 3};
    matrix.sparse_columns = {1, 4, 0};
    matrix.sparse_values = {1, 2, 3};
    REQUIRE(problem_of(matrix).empty());
    change(matrix);
    return problem_of(matrix);
  };
  CHECK_THAT(problem([](WeightMatrix& m) { m.codes.pop_back(); }), ContainsSubstring("do not fit"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.codebooks[5] = 0x7e00; }),
             ContainsSubstring("'codebooks' holds NaN or infinity at [1, 1]"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.codebooks[7] = 0x7c00; }), ContainsSubstring("[1, 3]"));
  CHECK_THAT(problem([](WeightMatrix& m) { std::swap(m.codebooks[1], m.codebooks[2]); }),
             ContainsSubstring("does not ascend at [0, 2]"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.row_start[0] = 1; }), ContainsSubstring("'row_start' runs from 1"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.row_start[2] = 2; }), ContainsSubstring("0 to 3 is needed"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.row_start[1] = 9; }), ContainsSubstring("'row_start' falls at [2]"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.sparse_columns[1] = 6; }), ContainsSubstring("holds 6 at [1]"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.sparse_columns[1] = 1; }), ContainsSubstring("holds 1 at [1]"));
  CHECK_THAT(problem([](WeightMatrix& m) { m.sparse_values[2] = 0xfc00; }),
             ContainsSubstring("'sparse_values' holds NaN or infinity at [2]"));
}
