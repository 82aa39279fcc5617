#include <cmath>
#include <vector>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/vector/orthogonal.h>
#include <kvq/vector/orthogonal_loops.h>

using namespace kvq;

namespace {

std::vector<float> unit_vector(int dim, int index) {
  std::vector<float> x(static_cast<std::size_t>(dim), 0.0f);
  x[static_cast<std::size_t>(index)] = 1.0f;
  return x;
}

/// Column `index` of the transform, as forward() has it.
std::vector<double> column(const OrthogonalTransform& q, int index) {
  const std::vector<float> x = unit_vector(q.dim(), index);
  std::vector<float> y(x.size());
  q.forward(x, y);
  return {y.begin(), y.end()};
}

/// By elimination with pivots.
double determinant(std::vector<std::vector<double>> a) {
  double product = 1;
  for (std::size_t step = 0; step < a.size(); ++step) {
    std::size_t pivot = step;
    for (std::size_t row = step; row < a.size(); ++row) {
      if (std::abs(a[row][step]) > std::abs(a[pivot][step])) pivot = row;
    }
    if (pivot != step) std::swap(a[pivot], a[step]), product = -product;
    product *= a[step][step];
    for (std::size_t row = step + 1; row < a.size(); ++row) {
      const double factor = a[row][step] / a[step][step];
      for (std::size_t other = step; other < a.size(); ++other) a[row][other] -= factor * a[step][other];
    }
  }
  return product;
}

std::vector<float> random_rows(int dim, int rows, std::uint64_t seed) {
  Rng rng(seed);
  const std::vector<double> numbers = normal_numbers(rng, static_cast<std::size_t>(dim * rows));
  return {numbers.begin(), numbers.end()};
}

OrthogonalTransform make(bool hadamard, int dim, std::uint64_t seed) {
  return hadamard ? OrthogonalTransform::hadamard(dim, seed) : OrthogonalTransform::random(dim, seed);
}

}  // namespace

TEST_CASE("Rotations are orthogonal: columns have products 0 and 1") {
  for (const bool hadamard : {false, true}) {
    for (const int dim : {8, 16, 48, 64, 72, 80, 96, 128}) {
      const OrthogonalTransform q = make(hadamard, dim, 5);
      std::vector<std::vector<double>> columns;
      for (int index = 0; index < dim; ++index) columns.push_back(column(q, index));
      double worst = 0;
      for (int a = 0; a < dim; ++a) {
        for (int b = a; b < dim; ++b) {
          double product = a == b ? -1 : 0;
          for (int row = 0; row < dim; ++row) product += columns[a][row] * columns[b][row];
          worst = std::max(worst, std::abs(product));
        }
      }
      INFO("d " << dim << (hadamard ? " hadamard" : " random"));
      CHECK(worst < 3e-6);
      CHECK(std::abs(determinant(columns)) == Approx(1).epsilon(1e-5));
      if (!hadamard) CHECK(determinant(columns) > 0);  // a rotation: no reflection
    }
  }
  for (const int dim : {1, 2, 3, 5, 7}) {  // odd and small
    std::vector<std::vector<double>> columns;
    const OrthogonalTransform q = OrthogonalTransform::random(dim, 9);
    for (int index = 0; index < dim; ++index) columns.push_back(column(q, index));
    CHECK(determinant(columns) == Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("The inverse gives back what went in") {
  for (const bool hadamard : {false, true}) {
    for (const int dim : {8, 16, 64, 72, 80, 112, 128}) {
      const OrthogonalTransform q = make(hadamard, dim, 3);
      const std::vector<float> x = random_rows(dim, 7, 4);
      std::vector<float> y(x.size()), back(x.size());
      q.forward(x, y);
      q.inverse(y, back);
      for (std::size_t index = 0; index < x.size(); ++index) CHECK(std::abs(back[index] - x[index]) < 3e-6f);
    }
  }
}

TEST_CASE("forward is the product with the stored matrix, in double") {
  for (const int dim : {5, 16, 40, 64}) {
    const OrthogonalTransform q = OrthogonalTransform::random(dim, 12);
    const std::vector<float> x = random_rows(dim, 6, 2);
    std::vector<float> y(x.size());
    q.forward(x, y);
    for (std::size_t row = 0; row < 6; ++row) {
      for (int i = 0; i < dim; ++i) {
        double sum = 0;
        for (int j = 0; j < dim; ++j)
          sum += static_cast<double>(q.table()[static_cast<std::size_t>(i * dim + j)]) * x[row * dim + j];
        CHECK(std::abs(y[row * dim + i] - sum) < 2e-6 * std::sqrt(dim));
      }
    }
  }
}

TEST_CASE("Over seeds, elements of a random rotation have the moments of Haar's measure") {
  // E q = 0, E q² = 1/d, E q⁴ = 3/(d(d+2)), E q_11 q_22 = 0 and, for the columns' independence up to orthogonality,
  // E q_11² q_22² = (d+1) / ((d-1) d (d+2)). Without the signs of R's diagonal E q_22 < 0 (row 1 has its
  // sign from the determinant).
  constexpr int kDim = 6, kSeeds = 40000;
  double first = 0, next = 0, second = 0, fourth = 0, mixed = 0, cross = 0, corner = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const OrthogonalTransform transform = OrthogonalTransform::random(kDim, static_cast<std::uint64_t>(seed));
    const std::vector<float>& q = transform.table();
    const double a = q[0], b = q[kDim + 1], last = q[kDim * kDim - 1];
    next += b, first += a, second += a * a, fourth += a * a * a * a, mixed += a * a * b * b, cross += a * b,
        corner += last;
  }
  const double d = kDim;
  // Five standard errors each.
  CHECK(std::abs(first / kSeeds) < 5 * std::sqrt(1 / d / kSeeds));
  CHECK(std::abs(next / kSeeds) < 5 * std::sqrt(1 / d / kSeeds));
  CHECK(std::abs(corner / kSeeds) < 5 * std::sqrt(1 / d / kSeeds));
  CHECK(std::abs(second / kSeeds - 1 / d) < 5 * 0.21 / std::sqrt(kSeeds));
  CHECK(std::abs(fourth / kSeeds - 3 / (d * (d + 2))) < 5 * 0.13 / std::sqrt(kSeeds));
  CHECK(std::abs(cross / kSeeds) < 5 * std::sqrt(0.04) / std::sqrt(kSeeds));
  CHECK(std::abs(mixed / kSeeds - (d + 1) / ((d - 1) * d * (d + 2))) < 5 * 0.06 / std::sqrt(kSeeds));
}

TEST_CASE("A seed gives one rotation, another seed another") {
  for (const bool hadamard : {false, true}) {
    CHECK(make(hadamard, 64, 1).table() == make(hadamard, 64, 1).table());
    CHECK(make(hadamard, 64, 1).table() != make(hadamard, 64, 2).table());
    const OrthogonalTransform q = make(hadamard, 64, 1);
    const OrthogonalTransform again =
        hadamard ? OrthogonalTransform::from_signs(64, q.table()) : OrthogonalTransform::from_matrix(64, q.table());
    const std::vector<float> x = random_rows(64, 3, 8);
    std::vector<float> y(x.size()), z(x.size());
    q.forward(x, y);
    again.forward(x, z);
    CHECK(y == z);
  }
  // mt19937_64(0) begins 2947667278772165694, 18301848765998365067, 729919693006235833, …: odd numbers are -1.
  const std::vector<float> signs = OrthogonalTransform::hadamard(8, 0).table();
  CHECK(signs == std::vector<float>{1, -1, -1, 1, 1, 1, -1, 1});
}

TEST_CASE("Hadamard: a power of two is one round of H / √d, other numbers reach every output from every input") {
  CHECK(OrthogonalTransform::hadamard_rounds(64) == 1);
  CHECK(OrthogonalTransform::hadamard_rounds(80) == 2);  // 16² >= 80
  CHECK(OrthogonalTransform::hadamard_rounds(72) == 3);  // 8² < 72
  const OrthogonalTransform q = OrthogonalTransform::hadamard(64, 2);
  for (int index = 0; index < 64; ++index) {
    for (int row = 0; row < 64; ++row) {
      // Sylvester's matrix: (-1)^(ones in row & index)
      const int sign = __builtin_popcount(static_cast<unsigned>(row & index)) % 2 == 0 ? 1 : -1;
      CHECK(column(q, index)[static_cast<std::size_t>(row)] ==
            Approx(sign * q.table()[static_cast<std::size_t>(index)] / 8));
    }
  }
  for (const int dim : {24, 48, 72, 80, 96, 112, 120}) {
    const OrthogonalTransform blocks = OrthogonalTransform::hadamard(dim, 2);
    // Products of inputs and outputs in blocks: how much of a block of inputs comes to each block of outputs.
    const int block = hadamard_block(dim);
    for (int first = 0; first < dim; first += block) {
      std::vector<double> energy(static_cast<std::size_t>(dim / block), 0.0);
      for (int index = first; index < first + block; ++index) {
        const std::vector<double> out = column(blocks, index);
        for (int row = 0; row < dim; ++row)
          energy[static_cast<std::size_t>(row / block)] +=
              out[static_cast<std::size_t>(row)] * out[static_cast<std::size_t>(row)];
      }
      for (const double share : energy) {
        INFO("d " << dim);
        CHECK(share / block > 0.4 * block / dim);
        CHECK(share / block < 2.5 * block / dim);
      }
    }
  }
}

TEST_CASE("Tables that are no rotations are refused") {
  std::vector<float> matrix = OrthogonalTransform::random(8, 1).table();
  CHECK_THROWS_AS(OrthogonalTransform::from_matrix(9, matrix), Error);
  matrix[3] += 0.01f;
  CHECK_THROWS_AS(OrthogonalTransform::from_matrix(8, matrix), Error);
  matrix[3] = NAN;
  CHECK_THROWS_AS(OrthogonalTransform::from_matrix(8, matrix), Error);
  CHECK_THROWS_AS(OrthogonalTransform::from_signs(8, std::vector<float>(7, 1.0f)), Error);
  CHECK_THROWS_AS(OrthogonalTransform::from_signs(8, std::vector<float>(8, 0.5f)), Error);
  CHECK_THROWS_AS(OrthogonalTransform::from_signs(12, std::vector<float>(24, 1.0f)), Error);
}

TEST_CASE("All instruction sets give the same bits") {
  const OrthogonalLoops& portable = orthogonal_loops(SimdLevel::Portable);
  for (const SimdLevel level : {SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best_simd_level()) continue;
    const OrthogonalLoops& loops = orthogonal_loops(level);
    for (const int dim : {1, 3, 8, 16, 17, 33, 64, 80, 128, 136}) {
      const std::vector<float> x = random_rows(dim, 7, 11), matrix = random_rows(dim, dim, 12);
      std::vector<float> a(x.size()), b(x.size());
      portable.multiply(x.data(), 7, dim, matrix.data(), dim, a.data());
      loops.multiply(x.data(), 7, dim, matrix.data(), dim, b.data());
      INFO("d " << dim);
      CHECK(a == b);
      // Columns: the same product the other way round.
      std::vector<float> columns(x.size()), product(x.size()), transposed(matrix.size());
      for (int channel = 0; channel < dim; ++channel) {
        for (int row = 0; row < 7; ++row)
          columns[static_cast<std::size_t>(channel * 7 + row)] = x[static_cast<std::size_t>(row * dim + channel)];
        for (int other = 0; other < dim; ++other)
          transposed[static_cast<std::size_t>(channel * dim + other)] =
              matrix[static_cast<std::size_t>(other * dim + channel)];
      }
      loops.multiply(transposed.data(), dim, dim, columns.data(), 7, product.data());
      for (int channel = 0; channel < dim; ++channel) {
        for (int row = 0; row < 7; ++row)
          CHECK(product[static_cast<std::size_t>(channel * 7 + row)] ==
                a[static_cast<std::size_t>(row * dim + channel)]);
      }
      CHECK(portable.dot(x.data(), matrix.data(), dim) == loops.dot(x.data(), matrix.data(), dim));
      a = b = x;
      for (int block = 1; dim % block == 0; block *= 2) {
        portable.mix_blocks(a.data(), dim, block);
        loops.mix_blocks(b.data(), dim, block);
        CHECK(a == b);
      }
    }
  }
}

TEST_CASE("inverse_columns gives the bytes of inverse of each column") {
  for (const int dim : {8, 24, 64, 80, 96, 128}) {
    for (const bool hadamard : {false, true}) {
      INFO("d " << dim << (hadamard ? ", hadamard" : ", random"));
      const auto rotation = hadamard ? OrthogonalTransform::hadamard(dim, 3) : OrthogonalTransform::random(dim, 3);
      for (const int columns : {1, 5, 64}) {
        const std::vector<float> rows = random_rows(dim, columns, 17);
        std::vector<float> expected(rows.size()), block(rows.size()), scratch;
        rotation.inverse(rows, expected);
        const auto n = static_cast<std::size_t>(dim), width = static_cast<std::size_t>(columns);
        for (std::size_t column = 0; column < width; ++column) {
          for (std::size_t row = 0; row < n; ++row) block[row * width + column] = rows[column * n + row];
        }
        rotation.inverse_columns(block.data(), columns, scratch);
        bool same = true;
        for (std::size_t column = 0; column < width; ++column) {
          for (std::size_t row = 0; row < n; ++row) same &= block[row * width + column] == expected[column * n + row];
        }
        CHECK(same);
      }
    }
  }
}
