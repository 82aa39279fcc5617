// Which weights stay exact (numpy), and codebooks per row (scikit-learn, brute force).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <nlohmann/json.hpp>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/fit/weight_fitter.h>
#include <kvq/model/block_weights.h>

using namespace kvq;

namespace {

/// Least Σ f (w - mean)² over all cuts of the sorted values into at most `clusters` pieces.
double best_error(std::vector<std::pair<double, double>> values, int clusters) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<int>(values.size());
  const auto piece = [&](int begin, int end) {
    double f = 0, fw = 0, error = 0;
    for (int index = begin; index < end; ++index)
      f += values[index].second, fw += values[index].second * values[index].first;
    if (f == 0) return 0.0;
    for (int index = begin; index < end; ++index)
      error += values[index].second * std::pow(values[index].first - fw / f, 2);
    return error;
  };
  std::function<double(int, int)> best = [&](int begin, int left) {
    if (begin == count) return 0.0;
    if (left == 1) return piece(begin, count);
    double least = std::numeric_limits<double>::infinity();
    for (int end = begin + 1; end <= count; ++end) least = std::min(least, piece(begin, end) + best(end, left - 1));
    return least;
  };
  return best(0, clusters);
}

double weighted_error(const WeightMatrix& matrix, const std::vector<float>& weights, const std::vector<float>& roots,
                      int row) {
  std::vector<float> decoded(static_cast<std::size_t>(matrix.columns));
  matrix.decode_row(row, decoded);
  const auto begin = static_cast<std::ptrdiff_t>(row) * matrix.columns;
  const double unit = *std::max_element(roots.begin() + begin, roots.begin() + begin + matrix.columns);
  double error = 0;
  for (int column = 0; column < matrix.columns; ++column) {
    const bool exact = std::find(matrix.sparse_columns.begin() + matrix.row_start[row],
                                 matrix.sparse_columns.begin() + matrix.row_start[row + 1],
                                 column) != matrix.sparse_columns.begin() + matrix.row_start[row + 1];
    if (exact) continue;
    const double share = unit > 0 ? roots[begin + column] / unit : 1.0;
    error += share * share * std::pow(static_cast<double>(weights[begin + column]) - decoded[column], 2);
  }
  return error;
}

std::vector<float> random_numbers(int count, std::uint64_t seed, bool positive = false) {
  Rng rng(seed);
  std::vector<float> numbers;
  for (int index = 0; index < count; ++index) {
    const double value = rng.uniform() + rng.uniform() + rng.uniform() - 1.5;
    numbers.push_back(static_cast<float>(positive ? value * value : value));
  }
  return numbers;
}

nlohmann::json golden() {
  std::ifstream file(KVQ_SOURCE_DIR "/tests/golden/weights_gqa-bias.json");
  return nlohmann::json::parse(file);
}

struct Gate {
  std::vector<float> weights, roots;
  int rows = 0, columns = 0;
};
Gate golden_gate(const nlohmann::json& expected) {
  const ModelSource source = open_model_source(KVQ_SOURCE_DIR "/tests/data/tiny/gqa-bias/model.gguf");
  const BlockShape shape = source.config.blocks();
  Gate gate{{},
            expected.at("roots").at(0).at("gate").get<std::vector<float>>(),
            shape.rows(BlockMatrix::Gate),
            shape.columns(BlockMatrix::Gate)};
  gate.weights.resize(gate.roots.size());
  read_block_matrix(source, 0, BlockMatrix::Gate, gate.weights);
  return gate;
}

}  // namespace

TEST_CASE("Exact weights are those that numpy picks: the most sensitive, then the largest") {
  const nlohmann::json expected = golden();
  const Gate gate = golden_gate(expected);
  for (const std::string fraction : {"0.02", "0.0045"}) {
    CHECK(exact_positions(gate.weights, gate.roots, std::stod(fraction)) ==
          expected.at("exact").at(fraction).get<std::vector<std::int64_t>>());
  }
}

TEST_CASE("Ties among exact weights go to the lower index, and no fraction keeps none") {
  std::vector<float> weights(10000, 1.0f), roots(10000, 1.0f);
  const std::vector<std::int64_t> first = exact_positions(weights, roots, 0.001);
  CHECK(first == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  weights[777] = -2;  // the largest magnitude
  roots[9000] = 3;    // the most sensitive
  roots[777] = 2.5f;  // sensitive and large: counted once
  const std::vector<std::int64_t> mixed = exact_positions(weights, roots, 0.001);
  CHECK(mixed == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 777, 9000});
  CHECK(exact_positions(weights, roots, 0).empty());
  CHECK(exact_positions(weights, roots, 0.0001) == std::vector<std::int64_t>{9000});  // one, by sensitivity
}

TEST_CASE("A row's error is scikit-learn's best of 200 starts or less, but for the rounding to fp16") {
  const nlohmann::json expected = golden();
  const Gate gate = golden_gate(expected);
  WeightFitError error;
  const WeightMatrix matrix = fit_weight_matrix(gate.weights, gate.roots, gate.rows, gate.columns, {3, 0.02}, 2, error);
  for (const auto& row : expected.at("kmeans")) {
    const double ours = weighted_error(matrix, gate.weights, gate.roots, row.at("row").get<int>());
    const double theirs = row.at("error").get<double>();
    INFO("row " << row.at("row"));
    CHECK(ours <= theirs * 1.001);
    CHECK(ours >= theirs * 0.5);  // and it is the same thing that is measured
  }
}

TEST_CASE("A row's error is the best of all cuts, with the row's own weights") {
  constexpr int kRows = 12, kColumns = 11;
  std::vector<float> weights = random_numbers(kRows * kColumns, 5), roots = random_numbers(kRows * kColumns, 6, true);
  std::fill_n(roots.begin() + 3 * kColumns, kColumns, 0.0f);    // a row without Fisher information
  std::fill_n(weights.begin() + 4 * kColumns, kColumns, 0.7f);  // a constant one
  std::fill_n(weights.begin() + 5 * kColumns, kColumns, 0.0f);  // a dead one
  for (int column = 0; column < kColumns; ++column) roots[6 * kColumns + column] *= 1e-25f;  // squares would underflow
  for (const int bits : {1, 2}) {
    WeightFitError error;
    const WeightMatrix matrix = fit_weight_matrix(weights, roots, kRows, kColumns, {bits, 0}, 1, error);
    CHECK(problem_of(matrix).empty());
    CHECK(matrix.sparse_values.empty());
    CHECK(error.unweighted_rows == 1);
    for (int row = 0; row < kRows; ++row) {
      INFO("row " << row << ", bits " << bits);
      std::vector<std::pair<double, double>> values;
      double unit = 0;
      for (int column = 0; column < kColumns; ++column) unit = std::max<double>(unit, roots[row * kColumns + column]);
      for (int column = 0; column < kColumns; ++column) {
        const double share = unit > 0 ? roots[row * kColumns + column] / unit : 1;
        values.emplace_back(weights[row * kColumns + column], share * share);
      }
      const double best = best_error(values, 1 << bits);
      CHECK(weighted_error(matrix, weights, roots, row) == Approx(best).epsilon(2e-3).margin(2e-6));
    }
  }
}

TEST_CASE("Exact weights decode to themselves in fp16, and take no part in their row's codebook") {
  std::vector<float> weights = random_numbers(4 * 500, 8), roots(weights.size(), 1.0f);
  weights[3] = 40.0f;
  weights[1200] = -30.0f;
  WeightFitError error;
  const WeightMatrix matrix = fit_weight_matrix(weights, roots, 4, 500, {4, 0.001}, 1, error);
  REQUIRE(matrix.sparse_values.size() == 2);  // one by sensitivity: index 0; one by magnitude: 3
  CHECK(matrix.sparse_columns == std::vector<std::uint16_t>{0, 3});
  std::vector<float> row(500);
  matrix.decode_row(0, row);
  CHECK(row[3] == 40.0f);
  CHECK(row[0] == Approx(weights[0]).epsilon(0x1p-11));
  CHECK(half_to_float(matrix.codebooks[15]) < 2.0f);                 // 40 is not seen by row 0 …
  CHECK(half_to_float(matrix.codebooks[2 * 16]) == Approx(-30.0f));  // … as -30 is by row 2
  CHECK(error.squares / error.weights < 0.01);
  // A row of which all is exact.
  WeightFitError ignored;
  const std::vector<float> two = {5.0f, 6.0f, 0.1f, 0.2f}, ones(4, 1.0f);
  const WeightMatrix half = fit_weight_matrix(two, ones, 2, 2, {2, 0.5}, 1, ignored);
  std::vector<float> out(2);
  half.decode_row(0, out);
  CHECK(out == std::vector<float>{5.0f, 6.0f});
  CHECK(problem_of(half).empty());
}

TEST_CASE("Tiny and huge weights keep their digits, and the number of threads does not matter") {
  for (const float scale : {1e-7f, 1.0f, 1e6f}) {
    std::vector<float> weights = random_numbers(40 * 64, 9), roots = random_numbers(40 * 64, 10, true);
    for (float& weight : weights) weight *= scale;
    WeightFitError one, two;
    const WeightMatrix a = fit_weight_matrix(weights, roots, 40, 64, {4, 0.01}, 1, one);
    const WeightMatrix b = fit_weight_matrix(weights, roots, 40, 64, {4, 0.01}, 3, two);
    CHECK(a == b);
    CHECK(one.squares == two.squares);
    CHECK(one.squares / one.weights < 0.2);
  }
}

TEST_CASE("A weight that is no number is named with its place") {
  std::vector<float> weights(12, 1.0f), roots(12, 1.0f);
  weights[7] = std::numeric_limits<float>::quiet_NaN();
  WeightFitError error;
  CHECK_THROWS_WITH(fit_weight_matrix(weights, roots, 3, 4, {4, 0}, 1, error),
                    ContainsSubstring("row 1, column 3 is nan"));
}
