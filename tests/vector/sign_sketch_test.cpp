#include <cmath>
#include <vector>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/vector/orthogonal.h>
#include <kvq/vector/sign_sketch.h>

using namespace kvq;

TEST_CASE("A sketch's estimate has no bias over seeds, and the error that the paper states") {
  constexpr int kDim = 16, kSeeds = 20000;
  Rng rng(7);
  const std::vector<double> numbers = normal_numbers(rng, 2 * kDim);
  std::vector<float> r(numbers.begin(), numbers.begin() + kDim);
  std::vector<double> q(numbers.begin() + kDim, numbers.end());
  double norm = 0, q_norm = 0, wanted = 0;
  for (const float value : r) norm += static_cast<double>(value) * value;
  for (const double value : q) q_norm += value * value;
  norm = std::sqrt(norm);
  for (int channel = 0; channel < kDim; ++channel) wanted += q[channel] * r[channel];
  double sum = 0, squares = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const SignSketch sketch = SignSketch::random(kDim, static_cast<std::uint64_t>(seed));
    std::vector<std::uint8_t> bits(kDim);
    std::vector<float> direction(kDim);
    sketch.signs(r, bits);
    sketch.estimate(bits, direction);
    double product = 0;
    for (int channel = 0; channel < kDim; ++channel) product += q[channel] * direction[channel] * norm;
    sum += product, squares += product * product;
  }
  const double mean = sum / kSeeds, variance = squares / kSeeds - mean * mean;
  CHECK(std::abs(mean - wanted) < 4 * std::sqrt(variance / kSeeds));
  // QJL, lemma 4 of TurboQuant: variance at most π / (2 d) · ‖r‖² ‖q‖²
  CHECK(variance < 1.05 * std::acos(-1.0) / (2 * kDim) * norm * norm * q_norm);
  CHECK(variance > 0.3 * std::acos(-1.0) / (2 * kDim) * norm * norm * q_norm);
}

TEST_CASE("The signs are those of S r, and 0 counts as not negative") {
  const SignSketch sketch = SignSketch::from_table(2, {1.0f, -1.0f, 0.5f, 0.25f});
  std::vector<std::uint8_t> bits(4);
  sketch.signs(std::vector<float>{1.0f, 1.0f, -1.0f, 3.0f}, bits);
  CHECK(bits == std::vector<std::uint8_t>{1, 1, 0, 1});
  std::vector<float> direction(2);
  sketch.estimate(std::vector<std::uint8_t>{1, 0}, direction);
  CHECK(direction[0] == Approx(std::sqrt(std::acos(-1.0) / 2) / 2 * (1.0 - 0.5)));
  CHECK(direction[1] == Approx(std::sqrt(std::acos(-1.0) / 2) / 2 * (-1.0 - 0.25)));
  CHECK_THROWS_AS(SignSketch::from_table(2, {1.0f}), Error);
}
