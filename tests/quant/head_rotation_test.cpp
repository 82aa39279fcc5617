#include <kvq/quant/head_rotation.h>

#include <cmath>
#include <vector>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/rng.h>

using namespace kvq;

TEST_CASE("The largest power of two that divides a head is mixed") {
  CHECK(hadamard_block(64) == 64);
  CHECK(hadamard_block(80) == 16);
  CHECK(hadamard_block(96) == 32);
  CHECK(hadamard_block(7) == 1);
}

TEST_CASE("A rotation of two channels is the known one") {
  const std::vector<float> scale = {1.0f, 1.0f, 2.0f, 4.0f};
  std::vector<float> x = {3.0f, 1.0f, 1.0f, 1.0f};
  HeadRotation(scale, 2, 2).forward(x);
  const float root = std::sqrt(0.5f);
  CHECK(x[0] == Approx(4 * root));
  CHECK(x[1] == Approx(2 * root));
  CHECK(x[2] == Approx(6 * root));
  CHECK(x[3] == Approx(-2 * root));
}

TEST_CASE("R is orthogonal but for its scale, and R times its inverse is the identity") {
  for (const int head_dim : {1, 2, 6, 64, 80, 128}) {
    constexpr int kHeads = 2;
    const int width = kHeads * head_dim;
    Rng rng(static_cast<std::uint64_t>(head_dim));
    std::vector<float> scale, ones(static_cast<std::size_t>(width), 1.0f);
    for (int channel = 0; channel < width; ++channel)
      scale.push_back(static_cast<float>(std::exp(6.0 * rng.uniform() - 3.0)));
    const HeadRotation mixing(ones, kHeads, head_dim), rotation(scale, kHeads, head_dim);
    // Rows of the matrix: what the unit vectors become.
    std::vector<float> rows(static_cast<std::size_t>(width * width));
    for (int row = 0; row < width; ++row) rows[static_cast<std::size_t>(row * width + row)] = 1.0f;
    std::vector<float> there_and_back = rows;
    mixing.forward(rows);
    rotation.forward(there_and_back);
    rotation.inverse(there_and_back);
    double worst_product = 0, worst_identity = 0;
    for (int a = 0; a < width; ++a) {
      for (int b = 0; b < width; ++b) {
        double product = 0;
        for (int k = 0; k < width; ++k) product += rows[a * width + k] * rows[b * width + k];
        worst_product = std::max(worst_product, std::abs(product - (a == b)));
        const double bound = std::max(1.0f, scale[a] / scale[b]);  // rounding grows with the ratio of the scales
        worst_identity = std::max(worst_identity, std::abs(there_and_back[a * width + b] - (a == b)) / bound);
      }
    }
    CAPTURE(head_dim);
    CHECK(worst_product < 1e-6);
    CHECK(worst_identity < 2e-6);
    if (head_dim == 80) CHECK(rows[0 * width + 16] == 0.0f);  // blocks do not mix
    if (head_dim == 64) CHECK(std::abs(rows[0 * width + 63]) == Approx(0.125));
  }
}

TEST_CASE("Scales that are not positive are refused") {
  const std::vector<float> scale = {1.0f, 0.0f};
  CHECK_THROWS_AS(HeadRotation(scale, 1, 2), Error);
  CHECK_THROWS_AS(HeadRotation(scale, 1, 4), Error);
}
