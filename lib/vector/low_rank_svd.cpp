#include <kvq/vector/low_rank_svd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvq/core/error.h>

namespace kvq {

namespace {

double dot(const double* a, const double* b, std::size_t count) {
  double sums[4] = {};  // four at once, in an order that does not depend on the compiler
  std::size_t at = 0;
  for (; at + 4 <= count; at += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += a[at + lane] * b[at + lane];
  }
  for (; at < count; ++at) sums[0] += a[at] * b[at];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void turn(double* a, double* b, std::size_t count, double cosine, double sine) {
  for (std::size_t at = 0; at < count; ++at) {
    const double first = a[at], second = b[at];
    a[at] = cosine * first - sine * second;
    b[at] = sine * first + cosine * second;
  }
}

}  // namespace

TruncatedSvd truncated_svd(std::span<const double> matrix, int rows, int columns, int rank) {
  KVQ_ASSERT(rows >= 0 && columns >= 0 && rank >= 0);
  const std::size_t m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(columns);
  KVQ_ASSERT(matrix.size() == m * n);
  const bool turn_rows = rows < columns;
  const std::size_t few = std::min(m, n), many = std::max(m, n);
  // lines[k]: a column (or row) of the matrix, then of the identity, so that one rotation keeps both.
  std::vector<double> lines(few * (many + few), 0.0);
  const std::size_t stride = many + few;
  double largest = 0;
  for (const double value : matrix) largest = std::max(largest, std::fabs(value));
  const double unit = largest > 0 ? std::ldexp(1.0, std::ilogb(largest)) : 1;  // squares neither vanish nor overflow
  for (std::size_t line = 0; line < few; ++line) {
    for (std::size_t at = 0; at < many; ++at)
      lines[line * stride + at] = (turn_rows ? matrix[line * n + at] : matrix[at * n + line]) / unit;
    lines[line * stride + many + line] = 1;
  }

  constexpr double kOrthogonal = 1e-14;
  constexpr int kMostSweeps = 60;  // about 8 are needed; rounding could make the last rotations repeat
  for (int sweep = 0, turned = 1; turned > 0 && sweep < kMostSweeps; ++sweep) {
    turned = 0;
    for (std::size_t first = 0; first + 1 < few; ++first) {
      double* a = lines.data() + first * stride;
      double a_square = dot(a, a, many);
      for (std::size_t second = first + 1; second < few; ++second) {
        double* b = lines.data() + second * stride;
        const double b_square = dot(b, b, many), product = dot(a, b, many);
        if (std::fabs(product) <= kOrthogonal * std::sqrt(a_square) * std::sqrt(b_square)) continue;
        const double zeta = (b_square - a_square) / (2 * product);
        const double tangent = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent);
        turn(a, b, stride, cosine, cosine * tangent);
        a_square = dot(a, a, many);
        ++turned;
      }
    }
  }

  std::vector<double> lengths(few);
  for (std::size_t line = 0; line < few; ++line) {
    const double* a = lines.data() + line * stride;
    lengths[line] = std::sqrt(dot(a, a, many));
  }
  std::vector<std::size_t> order(few);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });

  TruncatedSvd result;
  const std::size_t kept = std::min(few, static_cast<std::size_t>(rank));
  for (std::size_t index = 0; index < kept; ++index) {
    const double* line = lines.data() + order[index] * stride;
    const double length = lengths[order[index]];
    result.values.push_back(length * unit);
    std::vector<double>& turned_side = turn_rows ? result.right : result.left;
    std::vector<double>& other_side = turn_rows ? result.left : result.right;
    for (std::size_t at = 0; at < many; ++at) turned_side.push_back(length > 0 ? line[at] / length : 0.0);
    other_side.insert(other_side.end(), line + many, line + stride);
  }
  return result;
}

}  // namespace kvq
