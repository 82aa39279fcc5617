#include <kvq/vector/leading_svd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/vector/magnitude.h>
#include <kvq/vector/subspace_loops.h>

namespace kvq {

namespace {

constexpr int kAtOnce = SubspaceLoops::kVectors;
constexpr int kIterations = 4;

/// `count` vectors of `length` numbers, `[count, length]`; count is a multiple of kAtOnce.
struct Vectors {
  std::int64_t count, length;
  std::vector<float> numbers;

  Vectors(std::int64_t vectors, std::int64_t of) : count(vectors), length(of), numbers(vectors * of) {}
  float* operator[](std::int64_t vector) { return numbers.data() + vector * length; }
  const float* operator[](std::int64_t vector) const { return numbers.data() + vector * length; }
};

/// Steele, Lea and Flood's SplitMix (OOPSLA 2014), without its state.
std::uint64_t mixed(std::uint64_t number) {
  number *= 0x9e3779b97f4a7c15;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

/// `[count / kAtOnce, length, kAtOnce]`, as the loops want them.
std::vector<float> in_groups(const Vectors& vectors) {
  std::vector<float> groups(vectors.numbers.size());
  for (std::int64_t vector = 0; vector < vectors.count; ++vector) {
    float* group = groups.data() + vector / kAtOnce * kAtOnce * vectors.length + vector % kAtOnce;
    const float* from = vectors[vector];
    for (std::int64_t at = 0; at < vectors.length; ++at) group[at * kAtOnce] = from[at];
  }
  return groups;
}

/// `matrix` `[rows, columns]` transposed times vectors of `rows`, given as groups.
void multiply(const std::vector<float>& matrix, std::int64_t rows, const std::vector<float>& groups,
              Vectors& products) {
  for (std::int64_t first = 0; first < products.count; first += kAtOnce)
    subspace_loops().multiply(matrix.data(), rows, products.length, groups.data() + first * rows, products[first]);
}

/// Scalar products of all pairs, `[count, count]`.
std::vector<double> gram(const Vectors& vectors, const std::vector<float>& groups) {
  const std::int64_t count = vectors.count, length = vectors.length;
  std::vector<double> products(count * count);
  std::vector<float> block(kAtOnce * kAtOnce);
  for (std::int64_t i = 0; i < count; i += kAtOnce) {
    for (std::int64_t j = 0; j < count; j += kAtOnce) {
      subspace_loops().multiply(groups.data() + i * length, length, kAtOnce, groups.data() + j * length, block.data());
      for (std::int64_t at = 0; at < kAtOnce * kAtOnce; ++at)
        products[(j + at / kAtOnce) * count + i + at % kAtOnce] = static_cast<double>(block[at]);
    }
  }
  return products;
}

/// By Cholesky's decomposition of the scalar products; what depends on earlier vectors becomes zero.
void orthonormalise(Vectors& vectors) {
  const std::int64_t count = vectors.count;
  std::vector<double> lower = gram(vectors, in_groups(vectors));
  constexpr double kDependent = 1e-5;  // of a square: what products in float leave of nothing
  for (std::int64_t row = 0; row < count; ++row) {
    double* of_row = lower.data() + row * count;
    const double square = of_row[row];
    for (std::int64_t column = 0; column <= row; ++column) {
      const double* other = lower.data() + column * count;
      double sum = of_row[column];
      for (std::int64_t at = 0; at < column; ++at) sum -= of_row[at] * other[at];
      if (column < row) {
        of_row[column] = other[column] > 0 ? sum / other[column] : 0.0;
      } else {
        of_row[row] = sum > kDependent * square ? std::sqrt(sum) : 0.0;
      }
    }
    float* vector = vectors[row];
    for (std::int64_t column = 0; column < row; ++column) {
      const auto share = static_cast<float>(of_row[column]);
      const float* earlier = vectors[column];
      for (std::int64_t at = 0; at < vectors.length; ++at) vector[at] -= share * earlier[at];
    }
    const float scale = of_row[row] > 0 ? static_cast<float>(1 / of_row[row]) : 0.0f;
    for (std::int64_t at = 0; at < vectors.length; ++at) vector[at] *= scale;
  }
}

/// Σ_j weights[j] · vectors[j] · scale
void append_mixed(const Vectors& vectors, const double* weights, double scale, std::vector<double>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + vectors.length, 0.0);
  for (std::int64_t vector = 0; vector < vectors.count; ++vector) {
    const double weight = weights[vector] * scale;
    for (std::int64_t at = 0; at < vectors.length; ++at)
      out[begin + at] += weight * static_cast<double>(vectors[vector][at]);
  }
}

}  // namespace

TruncatedSvd leading_svd(std::span<const float> matrix, int rows, int columns, int rank) {
  KVQ_ASSERT(matrix.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  const std::int64_t count = (rank + 4 + kAtOnce - 1) / kAtOnce * kAtOnce;
  if (std::min(rows, columns) <= count)
    return truncated_svd(std::vector<double>(matrix.begin(), matrix.end()), rows, columns, rank);
  const float largest = largest_magnitude(matrix);
  const int exponent = largest > 0 ? std::clamp(std::ilogb(largest), -120, 120) : 0;
  const float unit = std::ldexp(1.0f, -exponent);
  std::vector<float> scaled(matrix.size()), transposed(matrix.size());  // squares neither vanish nor overflow
  constexpr std::int64_t kTile = 16;
  for (std::int64_t first = 0; first < columns; first += kTile) {
    const std::int64_t end = std::min<std::int64_t>(columns, first + kTile);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = first; column < end; ++column) {
        const float value = matrix[row * columns + column] * unit;
        scaled[row * columns + column] = transposed[column * rows + row] = value;
      }
    }
  }

  Vectors left(count, rows), right(count, columns);
  std::uint64_t state = 0;
  for (float& number : right.numbers) number = (mixed(++state) >> 63) == 0 ? 1.0f : -1.0f;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    multiply(transposed, columns, in_groups(right), left);
    multiply(scaled, rows, in_groups(left), right);
    orthonormalise(right);
  }
  multiply(transposed, columns, in_groups(right), left);
  // The best that lies within the subspace: left = matrix · right, so that its scalar products have the squares of the
  // singular values.
  const TruncatedSvd within =
      truncated_svd(gram(left, in_groups(left)), static_cast<int>(count), static_cast<int>(count), rank);
  TruncatedSvd result;
  for (int k = 0; k < rank; ++k) {
    const double value = std::sqrt(within.values[static_cast<std::size_t>(k)]);
    const double* weights = within.right.data() + static_cast<std::int64_t>(k) * count;
    result.values.push_back(std::ldexp(value, exponent));
    append_mixed(left, weights, value > 0 ? 1 / value : 0.0, result.left);
    append_mixed(right, weights, 1.0, result.right);
  }
  return result;
}

}  // namespace kvq
