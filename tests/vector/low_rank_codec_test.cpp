// Singular values against numpy's (tests/golden/vector.json, made by scripts/reference/expected_vector.py), the
// correction against what they say it can remove, and damage.

#include <cmath>

#include <kvq/vector/leading_svd.h>
#include <kvq/vector/low_rank_codec.h>
#include <kvq/vector/low_rank_svd.h>
#include <kvq/vector/scalar_codec_fit.h>
#include <kvq/vector/subspace_loops.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Rows that decode to zeros: the residual is the matrix itself.
class NothingCodec : public VectorCodec {
 public:
  explicit NothingCodec(int dim) : dim_(dim) {}
  int dim() const override { return dim_; }
  void encode(std::span<const float>, std::vector<std::byte>&) const override {}
  void decode(std::span<const std::byte>, std::span<float> x) const override { std::fill(x.begin(), x.end(), 0.0f); }

 private:
  int dim_;
};

}  // namespace

TEST_CASE("Singular values and what is left after each rank are numpy's") {
  for (const auto& expected : vector_golden("svd")) {
    const int rows = expected.at("rows"), columns = expected.at("columns");
    const auto matrix = doubles(formula_matrix(rows, columns, expected.at("seed")));
    const auto values = expected.at("values").get<std::vector<double>>();
    const TruncatedSvd all = truncated_svd(matrix, rows, columns, 100);
    REQUIRE(all.values.size() == values.size());
    for (std::size_t k = 0; k < values.size(); ++k) CHECK(all.values[k] == Approx(values[k]).epsilon(1e-12));
    for (int rank = 1; rank <= 4; ++rank) {
      const TruncatedSvd svd = truncated_svd(matrix, rows, columns, rank);
      REQUIRE(svd.values.size() == static_cast<std::size_t>(rank));
      double left = 0;
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
          double value = matrix[static_cast<std::size_t>(row * columns + column)];
          for (int k = 0; k < rank; ++k)
            value -= svd.values[static_cast<std::size_t>(k)] * svd.left[static_cast<std::size_t>(k * rows + row)] *
                     svd.right[static_cast<std::size_t>(k * columns + column)];
          left += value * value;
        }
      }
      CHECK(left == Approx(expected.at("left")[static_cast<std::size_t>(rank - 1)].get<double>()).epsilon(1e-10));
    }
  }
}

TEST_CASE("Degenerate matrices have a decomposition") {
  const TruncatedSvd zeros = truncated_svd(std::vector<double>(12, 0.0), 4, 3, 2);
  CHECK(zeros.values == std::vector<double>{0, 0});
  CHECK(truncated_svd({}, 0, 3, 2).values.empty());
  std::vector<double> tiny(12);
  for (std::size_t at = 0; at < 12; ++at)
    tiny[at] = 1e-200 * static_cast<double>(1 + at / 3) * static_cast<double>(1 + at % 3);
  const TruncatedSvd one = truncated_svd(tiny, 4, 3, 3);
  CHECK(one.values[0] == Approx(1e-200 * std::sqrt(30.0) * std::sqrt(14.0)));
  CHECK(one.values[1] < 1e-214);
}

TEST_CASE("Few directions are found nearly, whatever the spectrum") {
  // Σ of the largest squares, found / exact; white noise is the worst that there is.
  const auto share = [](const std::vector<float>& x, int rows, int columns, int rank) {
    const TruncatedSvd exact = truncated_svd(doubles(x), rows, columns, rank);
    const TruncatedSvd found = leading_svd(x, rows, columns, rank);
    REQUIRE(found.values.size() == exact.values.size());
    double removed = squared_error(x, std::vector<float>(x.size())), held = 0;
    std::vector<float> rest = x;
    for (std::size_t k = 0; k < found.values.size(); ++k) {
      held += exact.values[k] * exact.values[k];
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        for (std::size_t column = 0; column < static_cast<std::size_t>(columns); ++column)
          rest[row * columns + column] -=
              static_cast<float>(found.values[k] * found.left[k * rows + row] * found.right[k * columns + column]);
      }
    }
    removed -= squared_error(rest, std::vector<float>(x.size()));
    return removed / held;
  };
  const auto noise = gaussian(128 * 128, 6);
  CHECK(share(noise, 128, 128, 4) > 0.93);
  CHECK(share(noise, 128, 128, 8) > 0.93);
  CHECK(share(noise, 64, 256, 4) > 0.9);
  CHECK(share(noise, 256, 64, 4) > 0.9);
  auto decaying = noise;
  for (std::size_t at = 0; at < decaying.size(); ++at)
    decaying[at] *= 1e-30f * static_cast<float>(std::pow(0.7, static_cast<double>(at % 128)));
  CHECK(share(decaying, 128, 128, 4) > 0.9999);
  // Of fewer directions than are asked for, and of none.
  std::vector<float> two(100 * 90);
  for (std::size_t row = 0; row < 100; ++row) {
    for (std::size_t column = 0; column < 90; ++column)
      two[row * 90 + column] = noise[row] * noise[200 + column] + 1e-3f * noise[400 + row] * noise[600 + column];
  }
  CHECK(share(two, 100, 90, 4) > 0.99999);
  const TruncatedSvd nothing = leading_svd(std::vector<float>(100 * 90), 100, 90, 3);
  CHECK(nothing.values == std::vector<double>{0, 0, 0});
  CHECK(nothing.left == std::vector<double>(300, 0.0));
}

TEST_CASE("Products with a subspace are the same bits for every instruction set") {
  for (const std::int64_t columns : {1, 7, 8, 24, 31, 47, 128}) {
    const auto matrix = gaussian(50 * columns, 7), vectors = gaussian(50 * 8, 8);
    std::vector<float> expected(8 * columns), products(8 * columns);
    for (int k = 0; k < 8; ++k) {
      for (std::int64_t column = 0; column < columns; ++column) {
        float sum = 0;
        for (std::int64_t row = 0; row < 50; ++row)
          sum = std::fma(matrix[row * columns + column], vectors[row * 8 + k], sum);
        expected[k * columns + column] = sum;
      }
    }
    for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
      if (level > best_simd_level()) continue;
      subspace_loops(level).multiply(matrix.data(), 50, columns, vectors.data(), products.data());
      CHECK(products == expected);
    }
  }
}

TEST_CASE("Factors of 8 bits leave what the missing ranks hold, and hardly more") {
  for (const auto& expected : vector_golden("svd")) {
    const int rows = expected.at("rows"), columns = expected.at("columns");
    const auto x = formula_matrix(rows, columns, expected.at("seed"));
    for (int rank = 1; rank <= 4; ++rank) {
      const LowRankCodec codec(std::make_shared<NothingCodec>(columns), {rank, rows, 8});
      const auto bytes = encoded(codec, x);
      CHECK(bytes.size() == static_cast<std::size_t>(rank * (rows + columns + 4)));
      const double left = expected.at("left")[static_cast<std::size_t>(rank - 1)];
      CHECK(squared_error(x, decoded(codec, bytes, x.size())) == Approx(left).epsilon(0.01));
    }
  }
}

TEST_CASE("A residual of low rank is removed, page by page, whatever the base") {
  constexpr int kRows = 300, kDim = 32;
  auto x = gaussian(kRows * kDim, 1);
  const auto left = gaussian(kRows, 2), right = gaussian(kDim, 3);
  auto base = std::make_shared<ScalarCodec>(kDim, RowScale::Max, std::vector<float>{-0.7f, 0.0f, 0.7f});
  // Base values that it holds exactly, and a rank-1 part on top that it cannot hold.
  for (std::size_t at = 0; at < x.size(); ++at) x[at] *= 0.01f;
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t channel = 0; channel < kDim; ++channel) x[row * kDim + channel] += left[row] * right[channel];
  }
  const double before = squared_error(x, restored(*base, x));
  for (const int bits : {4, 8}) {
    const LowRankCodec codec(base, {2, 128, bits});
    CHECK(codec.block_rows() == 128);
    CHECK(squared_error(x, restored(codec, x)) < before);
  }
  const double eight = squared_error(x, restored(LowRankCodec(base, {4, 64, 8}), x));
  const double two = squared_error(x, restored(LowRankCodec(base, {4, 64, 2}), x));
  CHECK(eight < two);
}

TEST_CASE("Pages of corrected rows can be read without the others") {
  const auto x = gaussian(50 * 16, 4);
  auto base = std::make_shared<ScalarCodec>(16, RowScale::Norm, fit_scalar_levels(x, 16, RowScale::Norm, 2));
  const LowRankCodec codec(base, {3, 20, 6});
  const auto all = encoded(codec, x);
  const auto second = encoded(codec, std::span<const float>(x).subspan(20 * 16, 20 * 16));
  CHECK((std::vector<std::byte>(all.begin() + static_cast<std::ptrdiff_t>(second.size()),
                                all.begin() + 2 * static_cast<std::ptrdiff_t>(second.size())) == second));
  // 10 rows at the end: 2 + 4 bytes each, three factors pairs of 10 and 16 codes of 6 bits with their scales
  CHECK(all.size() - 2 * second.size() == 10 * 6 + 3 * (2 + 8 + 2 + 12));
}

TEST_CASE("Damaged corrections are refused or decode to finite values") {
  const auto x = gaussian(5 * 6, 5);
  const LowRankCodec codec(std::make_shared<ScalarCodec>(6, RowScale::Max, std::vector<float>{-0.5f, 0.5f}), {2, 4, 7});
  const auto bytes = encoded(codec, x);
  std::vector<float> out(x.size());
  const int refused = damage_everywhere(bytes, [&](auto damaged) {
    codec.decode(damaged, out);
    for (const float value : out) REQUIRE(std::isfinite(value));
  });
  CHECK(refused >= static_cast<int>(bytes.size()));
}
