#include <kvq/fit/weight_fitter.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/parallel.h>
#include <kvq/fit/kmeans1d.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

constexpr std::int64_t kGrainRows = 8;

/// Moves the `count` indices of the largest `value` to the front.
template <class Value>
void largest_first(std::span<std::int64_t> indices, std::int64_t count, const Value& value) {
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const float left = value(a), right = value(b);
    return left != right ? left > right : a < b;
  };
  if (count > 0 && count < static_cast<std::int64_t>(indices.size()))
    std::nth_element(indices.begin(), indices.begin() + count, indices.end(), before);
}

float largest_finite(std::span<const float> weights, int columns) {
  float largest = 0;
  for (std::size_t index = 0; index < weights.size(); ++index) {
    if (!std::isfinite(weights[index])) {
      fail(ErrorKind::Numeric,
           fmt::format("weight at row {}, column {} is {}", index / columns, index % columns, weights[index]));
    }
    largest = std::max(largest, std::abs(weights[index]));
  }
  return largest;
}

/// One row of the matrix; threads work on rows of their own.
class RowFitter {
 public:
  RowFitter(std::span<const float> weights, std::span<const float> sensitivity, WeightMatrix& matrix)
      : weights_(weights), sensitivity_(sensitivity), matrix_(matrix) {}

  /// Returns whether the row has Fisher information at all.
  bool fit(int row) {
    const auto columns = static_cast<std::size_t>(matrix_.columns);
    const std::span<const float> w = weights_.subspan(row * columns, columns),
                                 s = sensitivity_.subspan(row * columns, columns);
    const std::uint16_t* const exact = matrix_.sparse_columns.data() + matrix_.row_start[row];
    const std::size_t exact_count = matrix_.row_start[row + 1] - matrix_.row_start[row];
    const float unit = *std::max_element(s.begin(), s.end());
    values_.clear();
    fisher_.clear();
    dense_.clear();
    for (std::size_t column = 0, next = 0; column < columns; ++column) {
      if (next < exact_count && exact[next] == column) {
        ++next;
        continue;
      }
      dense_.push_back(static_cast<int>(column));
      values_.push_back(w[column]);
      // Ratios alone matter; without the division squares of small gradients would underflow.
      const float share = unit > 0 ? s[column] / unit : 1.0f;
      fisher_.push_back(share * share);
    }
    const KMeans1dResult result = kmeans1d(values_, fisher_, matrix_.levels(), 1);
    const float scale = power_of_two(matrix_.exponent), inverse = power_of_two(-matrix_.exponent);
    std::vector<float> decoded;
    for (int level = 0; level < matrix_.levels(); ++level) {
      const std::uint16_t half = float_to_half(static_cast<float>(result.centroids[level]) * inverse);
      matrix_.codebooks[static_cast<std::size_t>(row) * matrix_.levels() + level] = half;
      decoded.push_back(half_to_float(half) * scale);
    }
    for (std::size_t index = 0; index < dense_.size(); ++index)
      matrix_.set_code(row, dense_[index], nearest(decoded, values_[index]));
    return unit > 0;
  }

 private:
  static int nearest(const std::vector<float>& decoded, float value) {
    const auto above = std::lower_bound(decoded.begin(), decoded.end(), value);
    if (above == decoded.begin()) return 0;
    const auto index = static_cast<int>(above - decoded.begin());
    if (above == decoded.end()) return index - 1;
    return value - *(above - 1) <= *above - value ? index - 1 : index;
  }

  std::span<const float> weights_, sensitivity_;
  WeightMatrix& matrix_;
  std::vector<float> values_, fisher_;
  std::vector<int> dense_;
};

}  // namespace

std::vector<std::int64_t> exact_positions(std::span<const float> weights, std::span<const float> sensitivity,
                                          double fraction) {
  const auto count = static_cast<std::int64_t>(weights.size());
  const std::int64_t total = std::llround(fraction * static_cast<double>(count));
  const std::int64_t sensitive =
      std::min<std::int64_t>(total, std::llround(kSensitiveShare * static_cast<double>(count)));
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  largest_first(indices, sensitive, [&](std::int64_t index) { return sensitivity[index]; });
  largest_first(std::span(indices).subspan(sensitive), total - sensitive,
                [&](std::int64_t index) { return std::abs(weights[index]); });
  indices.resize(static_cast<std::size_t>(total));
  std::sort(indices.begin(), indices.end());
  return indices;
}

WeightMatrix fit_weight_matrix(std::span<const float> weights, std::span<const float> sensitivity, int rows,
                               int columns, const WeightScheme& scheme, int threads, WeightFitError& error) {
  KVQ_ASSERT(rows > 0 && columns > 0 && static_cast<std::int64_t>(weights.size()) == std::int64_t{rows} * columns &&
             sensitivity.size() == weights.size());
  if (columns > kMostWeightColumns)
    fail(ErrorKind::Usage, fmt::format("a matrix of {} inputs: at most {} are possible", columns, kMostWeightColumns));
  WeightMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.bits = scheme.bits;
  matrix.exponent = choose_exponent(largest_finite(weights, columns));
  matrix.codebooks.resize(static_cast<std::size_t>(rows) * matrix.levels());
  matrix.codes.assign(static_cast<std::size_t>(rows * matrix.row_bytes()), 0);
  matrix.row_start.assign(static_cast<std::size_t>(rows) + 1, 0);
  const float inverse = power_of_two(-matrix.exponent);
  for (const std::int64_t index : exact_positions(weights, sensitivity, scheme.sparse)) {
    ++matrix.row_start[static_cast<std::size_t>(index / columns) + 1];
    matrix.sparse_columns.push_back(static_cast<std::uint16_t>(index % columns));
    matrix.sparse_values.push_back(float_to_half(weights[index] * inverse));
  }
  for (int row = 0; row < rows; ++row) matrix.row_start[row + 1] += matrix.row_start[row];

  const auto row_errors = static_cast<std::size_t>(rows);
  std::vector<double> squares(row_errors), sums(row_errors);
  std::vector<std::uint8_t> unweighted(row_errors);
  parallel_ranges(rows, kGrainRows, threads, [&](std::int64_t begin, std::int64_t end) {
    RowFitter fitter(weights, sensitivity, matrix);
    std::vector<float> decoded(static_cast<std::size_t>(columns));
    for (std::int64_t row = begin; row < end; ++row) {
      unweighted[row] = fitter.fit(static_cast<int>(row)) ? 0 : 1;
      matrix.decode_row(static_cast<int>(row), decoded);
      for (int column = 0; column < columns; ++column) {
        const double w = weights[row * columns + column], difference = w - decoded[column];
        squares[row] += difference * difference;
        sums[row] += w * w;
      }
    }
  });
  for (std::size_t row = 0; row < row_errors; ++row) {
    error.squares += squares[row];
    error.weights += sums[row];
    error.unweighted_rows += unweighted[row];
  }
  return matrix;
}

}  // namespace kvq
