#include <kvq/fit/block_fisher.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

/// Fixes the order of summation.
constexpr std::int64_t kPartTokens = 2048;

/// acc += g gᵀ, upper triangle.
void add_outer(const double* g, int dim, double* acc) {
  for (int row = 0; row < dim; ++row) {
    const double factor = g[row];
    double* sums = acc + static_cast<std::ptrdiff_t>(row) * dim;
    for (int column = row; column < dim; ++column) sums[column] += factor * g[column];
  }
}

/// Square matrix of doubles, row by row.
struct Square {
  int dim;
  std::vector<double> numbers;
  explicit Square(int size) : dim(size), numbers(static_cast<std::size_t>(size) * size) {}
  double& operator()(int row, int column) { return numbers[static_cast<std::size_t>(row) * dim + column]; }
};

/// W upper triangular with W Wᵀ = `matrix`: Cholesky from the last row up.
Square factor_from_below(Square& matrix) {
  const int dim = matrix.dim;
  Square factor(dim);
  for (int column = dim - 1; column >= 0; --column) {
    double pivot = matrix(column, column);
    for (int k = column + 1; k < dim; ++k) pivot -= factor(column, k) * factor(column, k);
    if (!(pivot > 0)) {
      fail(ErrorKind::Numeric, fmt::format("the Fisher matrix of a head is not positive definite (pivot {}); a larger "
                                           "damp= makes it so",
                                           pivot));
    }
    factor(column, column) = std::sqrt(pivot);
    for (int row = 0; row < column; ++row) {
      double rest = matrix(row, column);
      for (int k = column + 1; k < dim; ++k) rest -= factor(row, k) * factor(column, k);
      factor(row, column) = rest / factor(column, column);
    }
  }
  return factor;
}

Square inverse_of_upper(Square& factor) {
  const int dim = factor.dim;
  Square inverse(dim);
  for (int column = 0; column < dim; ++column) {
    inverse(column, column) = 1 / factor(column, column);
    for (int row = column - 1; row >= 0; --row) {
      double sum = 0;
      for (int k = row + 1; k <= column; ++k) sum += factor(row, k) * inverse(k, column);
      inverse(row, column) = -sum / factor(row, row);
    }
  }
  return inverse;
}

}  // namespace

std::vector<double> gradient_blocks(const TokenSample& sample, std::span<const float> gradients, int head_dim,
                                    int threads) {
  KVQ_ASSERT(gradients.size() == sample.x.size() && sample.width % head_dim == 0);
  const int heads = sample.width / head_dim;
  const std::int64_t parts = (sample.tokens() + kPartTokens - 1) / kPartTokens;
  const auto size = static_cast<std::size_t>(head_dim) * head_dim;
  std::vector<std::vector<double>> sums(static_cast<std::size_t>(heads * parts));
  parallel_for(heads * parts, threads, [&](std::int64_t index) {
    const std::int64_t head = index / parts, part = index % parts;
    std::vector<double>& sum = sums[static_cast<std::size_t>(index)];
    sum.assign(size, 0.0);
    std::vector<double> g(static_cast<std::size_t>(head_dim));
    const std::int64_t end = std::min((part + 1) * kPartTokens, sample.tokens());
    for (std::int64_t token = part * kPartTokens; token < end; ++token) {
      if (!sample.counts(token)) continue;
      const float* row = gradients.data() + token * sample.width + head * head_dim;
      for (int channel = 0; channel < head_dim; ++channel) g[static_cast<std::size_t>(channel)] = row[channel];
      add_outer(g.data(), head_dim, sum.data());
    }
  });
  std::vector<double> blocks(static_cast<std::size_t>(heads) * size);
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
    double* block = blocks.data() + head * size;
    for (std::size_t part = 0; part < static_cast<std::size_t>(parts); ++part) {
      const std::vector<double>& sum = sums[head * static_cast<std::size_t>(parts) + part];
      for (std::size_t i = 0; i < size; ++i) block[i] += sum[i];
    }
    for (int row = 0; row < head_dim; ++row) {
      for (int column = row; column < head_dim; ++column) {
        const double mean = block[row * head_dim + column] / static_cast<double>(sample.counted_tokens());
        block[row * head_dim + column] = block[column * head_dim + row] = mean;
      }
    }
  }
  return blocks;
}

BlockFactor factor_block(std::span<const double> block, std::span<const double> scales, CodingOrder order,
                         double damp) {
  const int dim = static_cast<int>(scales.size());
  KVQ_ASSERT(block.size() == scales.size() * scales.size());
  BlockFactor result;
  double mean = 0;
  for (int channel = 0; channel < dim; ++channel) mean += block[channel * dim + channel] / dim;
  result.plain = !(mean > 0);
  result.hessian.assign(block.size(), 0.0);
  for (int row = 0; row < dim; ++row) {
    for (int column = 0; column < dim; ++column) {
      double& entry = result.hessian[row * dim + column];
      entry = result.plain ? (row == column ? 1.0 : 0.0) : block[row * dim + column] / mean;
      if (row == column) entry += damp;
    }
  }

  result.order.resize(dim);
  std::iota(result.order.begin(), result.order.end(), 0);
  if (order != CodingOrder::Natural) {
    const auto energy = [&](int channel) {
      return result.hessian[channel * dim + channel] * scales[channel] * scales[channel];
    };
    std::stable_sort(result.order.begin(), result.order.end(), [&](int a, int b) {
      return order == CodingOrder::Energy ? energy(a) > energy(b) : energy(a) < energy(b);
    });
  }

  Square ordered(dim);
  for (int row = 0; row < dim; ++row) {
    for (int column = 0; column < dim; ++column)
      ordered(row, column) = result.hessian[result.order[row] * dim + result.order[column]];
  }
  // H = W Wᵀ gives H^-1 = W^-ᵀ W^-1 with W^-1 upper triangular: that is U, and no inverse of H is needed.
  Square factor = factor_from_below(ordered);
  Square upper = inverse_of_upper(factor);
  result.updates.assign(block.size(), 0.0);
  result.pivots.assign(dim, 0.0);
  for (int row = 0; row < dim; ++row) {
    result.pivots[result.order[row]] = factor(row, row) * factor(row, row);
    for (int column = row + 1; column < dim; ++column)
      result.updates[row * dim + column] = upper(row, column) / upper(row, row);
  }
  return result;
}

}  // namespace kvq
