// Product quantization against scikit-learn's KMeans (tests/golden/vector.json, made by
// scripts/reference/expected_vector.py), brute force, and degenerate samples.

#include <cmath>
#include <set>

#include <kvq/vector/product_codec.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

struct Weights {
  std::vector<float> rows, channels;
};

Weights golden_weights(int rows, int dim) {
  Weights weights;
  for (const float value : formula_matrix(rows, 1, 5)) weights.rows.push_back(std::fabs(value) + 0.125f);
  for (const float value : formula_matrix(1, dim, 6)) weights.channels.push_back(std::fabs(value) * 4 + 0.25f);
  return weights;
}

std::vector<float> golden_rows(int rows, int dim) {
  auto x = formula_matrix(rows, dim, 4);
  for (std::size_t at = 1; at < x.size(); at += 2) x[at] += x[at - 1];
  return x;
}

}  // namespace

TEST_CASE("Product quantization errs at most 2 % more than scikit-learn's k-means, weighted or not") {
  for (const auto& expected : vector_golden("product")) {
    const int rows = expected.at("rows"), dim = expected.at("dim");
    const auto x = golden_rows(rows, dim);
    ProductOptions options;
    options.subspaces = expected.at("subspaces");
    options.bits = expected.at("bits");
    const bool weighted = expected.at("weighted");
    Weights weights;
    if (weighted) weights = golden_weights(rows, dim);
    const ProductCodec codec(train_product(x, dim, weights.rows, weights.channels, options));
    const auto found = restored(codec, x);
    double error = 0;
    for (std::size_t at = 0; at < x.size(); ++at) {
      const double difference = static_cast<double>(x[at]) - static_cast<double>(found[at]);
      const std::size_t row = at / static_cast<std::size_t>(dim), channel = at % static_cast<std::size_t>(dim);
      error +=
          (weighted ? static_cast<double>(weights.rows[row]) * static_cast<double>(weights.channels[channel]) : 1.0) *
          difference * difference;
    }
    INFO(options.subspaces << " subspaces, " << options.bits << " bits, weighted " << weighted);
    CHECK(error <= 1.02 * expected.at("error").get<double>());
    CHECK(error >= 0.98 * expected.at("error").get<double>());
  }
}

TEST_CASE("Codes are those of the nearest centroids, by brute force with weights") {
  const auto x = golden_rows(100, 6);
  const auto weights = golden_weights(100, 6);
  ProductOptions options;
  options.subspaces = 3;
  options.bits = 3;
  const ProductCodec codec(train_product(x, 6, {}, weights.channels, options));
  const auto found = restored(codec, x);
  const auto cost = [&](std::size_t at, const float* pair) {
    double sum = 0;
    for (std::size_t c = 0; c < 2; ++c)
      sum += static_cast<double>(weights.channels[at % 6 + c]) *
             std::pow(static_cast<double>(x[at + c]) - static_cast<double>(pair[c]), 2);
    return sum;
  };
  for (std::size_t at = 0; at < x.size(); at += 2) {
    double nearest = 1e300;
    for (std::size_t centroid = 0; centroid < 8; ++centroid)
      nearest = std::min(nearest, cost(at, codec.books().centroids.data() + (at % 6 / 2 * 8 + centroid) * 2));
    CHECK(cost(at, found.data() + at) <= nearest + 1e-5);
  }
}

TEST_CASE("Fewer rows than centroids come back exactly, and fewer distinct rows too") {
  const auto x = formula_matrix(10, 8, 9);
  std::vector<float> twice(x);
  twice.insert(twice.end(), x.begin(), x.end());
  ProductOptions options;
  options.subspaces = 2;
  options.bits = 4;
  CHECK(restored(ProductCodec(train_product(x, 8, {}, {}, options)), x) == x);
  CHECK(restored(ProductCodec(train_product(twice, 8, {}, {}, options)), twice) == twice);
  const ProductCodec none(train_product({}, 8, {}, {}, options));
  CHECK(restored(none, x) == std::vector<float>(x.size(), 0.0f));
}

TEST_CASE("Rows of weight 0 count for nothing; all weights 0 count as 1") {
  auto x = golden_rows(200, 4);
  std::vector<float> weights(200, 1.0f);
  for (std::size_t row = 100; row < 200; ++row) {
    weights[row] = 0;
    for (std::size_t channel = 0; channel < 4; ++channel) x[row * 4 + channel] += 100;
  }
  ProductOptions options;
  options.subspaces = 2;
  options.bits = 3;
  for (const float centroid : train_product(x, 4, weights, {}, options).centroids) CHECK(std::fabs(centroid) < 10);
  const std::vector<float> zeros(200, 0.0f), no_channels(4, 0.0f);
  CHECK(train_product(x, 4, zeros, no_channels, options).centroids == train_product(x, 4, {}, {}, options).centroids);
  weights[3] = -1;
  CHECK_THROWS_WITH(train_product(x, 4, weights, {}, options), ContainsSubstring("row 3"));
}

TEST_CASE("Values whose squares are beyond a float are refused") {
  auto x = golden_rows(40, 4);
  x[5] = 3e25f;
  ProductOptions options;
  options.subspaces = 2;
  options.bits = 3;
  CHECK_THROWS_WITH(train_product(x, 4, {}, {}, options), ContainsSubstring("too large for a float"));
}

TEST_CASE("Dividing by the norm makes codes independent of the size of rows") {
  auto x = golden_rows(300, 8);
  ProductOptions options;
  options.subspaces = 4;
  options.bits = 4;
  options.norm = true;
  const ProductCodec codec(train_product(x, 8, {}, {}, options));
  const auto bytes = encoded(codec, std::span<const float>(x).first(8));
  CHECK(bytes.size() == 2 + 2);
  for (std::size_t at = 0; at < 8; ++at) x[at] *= 64;
  const auto larger = encoded(codec, std::span<const float>(x).first(8));
  CHECK(std::equal(bytes.begin() + 2, bytes.end(), larger.begin() + 2));
  CHECK(restored(codec, std::vector<float>(8, 0.0f)) == std::vector<float>(8, 0.0f));
}

TEST_CASE("Product codebooks are the same for any number of threads, and for the same seed only") {
  const auto x = golden_rows(300, 8);
  ProductOptions options;
  options.subspaces = 4;
  options.bits = 5;
  const auto once = train_product(x, 8, {}, {}, options).centroids;
  options.threads = 3;
  CHECK(train_product(x, 8, {}, {}, options).centroids == once);
  options.seed = 99;
  CHECK(train_product(x, 8, {}, {}, options).centroids != once);
  options.subspaces = 3;
  CHECK_THROWS_WITH(train_product(x, 8, {}, {}, options), ContainsSubstring("3 subspaces for rows of 8 channels"));
}

TEST_CASE("Damaged product codes are refused or decode to finite values") {
  const auto x = golden_rows(60, 8);
  ProductOptions options;
  options.subspaces = 4;
  options.bits = 3;  // 12 bits in two bytes
  options.norm = true;
  const ProductCodec codec(train_product(x, 8, {}, {}, options));
  const auto bytes = encoded(codec, std::span<const float>(x).first(5 * 8));
  std::vector<float> out(5 * 8);
  const int refused = damage_everywhere(bytes, [&](auto damaged) {
    codec.decode(damaged, out);
    for (const float value : out) REQUIRE(std::isfinite(value));
  });
  CHECK(refused >= static_cast<int>(bytes.size()) + 5 * 4);  // truncations and padding
}
