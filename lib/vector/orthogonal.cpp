#include <kvq/vector/orthogonal.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/vector/orthogonal_loops.h>

namespace kvq {

namespace {

constexpr double kOrthogonal = 1e-4;

/// `a`: `[dim, dim]`; becomes Q with det +1 of its QR decomposition.
void orthogonalise(std::vector<double>& a, int dim) {
  const auto n = static_cast<std::size_t>(dim);
  std::vector<std::vector<double>> reflections;
  std::vector<double> sign(n, 1.0);
  bool odd = false;
  for (std::size_t column = 0; column < n; ++column) {
    std::vector<double> v(n, 0.0);
    double norm = 0;
    for (std::size_t row = column; row < n; ++row) norm += a[row * n + column] * a[row * n + column];
    norm = std::sqrt(norm);
    const double head = a[column * n + column];
    if (column + 1 == n) {  // nothing to reflect: R's last element is the head itself
      sign[column] = head < 0 ? -1.0 : 1.0;
      break;
    }
    const double diagonal = head > 0 ? -norm : norm;  // of R
    sign[column] = diagonal < 0 ? -1.0 : 1.0;
    for (std::size_t row = column; row < n; ++row) v[row] = a[row * n + column];
    v[column] -= diagonal;
    double square = 0;
    for (const double element : v) square += element * element;
    for (double& element : v) element *= std::sqrt(2 / square);
    for (std::size_t other = column; other < n; ++other) {
      double product = 0;
      for (std::size_t row = column; row < n; ++row) product += v[row] * a[row * n + other];
      for (std::size_t row = column; row < n; ++row) a[row * n + other] -= v[row] * product;
    }
    reflections.push_back(std::move(v));
    odd = !odd;
  }
  // Q = H_1 H_2 … · diag(sign)
  std::fill(a.begin(), a.end(), 0.0);
  for (std::size_t index = 0; index < n; ++index) {
    a[index * n + index] = sign[index];
    odd ^= sign[index] < 0;
  }
  for (auto v = reflections.rbegin(); v != reflections.rend(); ++v) {
    for (std::size_t column = 0; column < n; ++column) {
      double product = 0;
      for (std::size_t row = 0; row < n; ++row) product += (*v)[row] * a[row * n + column];
      for (std::size_t row = 0; row < n; ++row) a[row * n + column] -= (*v)[row] * product;
    }
  }
  if (odd) {
    for (std::size_t column = 0; column < n; ++column) a[column] = -a[column];
  }
}

void check_size(int dim, std::size_t size, std::size_t wanted, const char* what) {
  if (size != wanted)
    fail(ErrorKind::Mismatch, fmt::format("rotation of {} channels has {} {}; it needs {}", dim, size, what, wanted));
}

}  // namespace

std::vector<double> normal_numbers(Rng& rng, std::size_t count) {
  std::vector<double> numbers;
  while (numbers.size() < count) {
    const double u = 2 * rng.uniform() - 1, v = 2 * rng.uniform() - 1, square = u * u + v * v;
    if (square >= 1 || square == 0) continue;
    const double factor = std::sqrt(-2 * std::log(square) / square);
    numbers.push_back(u * factor);
    if (numbers.size() < count) numbers.push_back(v * factor);
  }
  return numbers;
}

int OrthogonalTransform::hadamard_rounds(int dim) {
  const int block = hadamard_block(dim);
  if (block < 2) return 0;
  int rounds = 1;
  for (std::int64_t reached = block; reached < dim; reached *= block) ++rounds;
  return rounds;
}

OrthogonalTransform OrthogonalTransform::random(int dim, std::uint64_t seed) {
  KVQ_ASSERT(dim >= 1);
  Rng rng(seed);
  std::vector<double> matrix = normal_numbers(rng, static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim));
  orthogonalise(matrix, dim);
  return {dim, 0, {matrix.begin(), matrix.end()}};
}

OrthogonalTransform OrthogonalTransform::hadamard(int dim, std::uint64_t seed) {
  KVQ_ASSERT(has_hadamard(dim));
  Rng rng(seed);
  const int rounds = hadamard_rounds(dim);
  std::vector<float> signs;
  for (int index = 0; index < rounds * dim; ++index) signs.push_back(rng.below(2) == 0 ? 1.0f : -1.0f);
  return {dim, rounds, std::move(signs)};
}

OrthogonalTransform OrthogonalTransform::from_matrix(int dim, std::vector<float> matrix) {
  const auto n = static_cast<std::size_t>(dim);
  check_size(dim, matrix.size(), n * n, "numbers");
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a; b < n; ++b) {
      double product = a == b ? -1.0 : 0.0;
      for (std::size_t column = 0; column < n; ++column)
        product += static_cast<double>(matrix[a * n + column]) * matrix[b * n + column];
      if (!(std::abs(product) <= kOrthogonal))
        fail(ErrorKind::Mismatch,
             fmt::format("rotation is not orthogonal: the product of rows {} and {} is off by {:.3g}", a, b, product));
    }
  }
  return {dim, 0, std::move(matrix)};
}

OrthogonalTransform OrthogonalTransform::from_signs(int dim, std::vector<float> signs) {
  if (!has_hadamard(dim))
    fail(ErrorKind::Mismatch, fmt::format("{} channels have no Hadamard rotation: 8 must divide their number", dim));
  const int rounds = hadamard_rounds(dim);
  check_size(dim, signs.size(), static_cast<std::size_t>(rounds * dim), "signs");
  for (const float sign : signs) {
    if (sign != 1.0f && sign != -1.0f)
      fail(ErrorKind::Mismatch, fmt::format("rotation has a sign of {}; 1 and -1 are possible", sign));
  }
  return {dim, rounds, std::move(signs)};
}

OrthogonalTransform::OrthogonalTransform(int dim, int rounds, std::vector<float> table)
    : loops_(&orthogonal_loops()), dim_(dim), rounds_(rounds), table_(std::move(table)) {
  const auto n = static_cast<std::size_t>(dim);
  if (rounds == 0) {
    columns_.resize(n * n);
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t column = 0; column < n; ++column) columns_[column * n + row] = table_[row * n + column];
    }
    return;
  }
  const int block = hadamard_block(dim), blocks = dim / block;
  scale_ = static_cast<float>(std::pow(static_cast<double>(block), -0.5 * rounds));
  if (rounds == 1) return;
  back_.resize(n);
  for (int element = 0; element < dim; ++element) {
    dealt_.push_back(element % blocks * block + element / blocks);
    back_[static_cast<std::size_t>(dealt_.back())] = element;
  }
}

void OrthogonalTransform::forward(std::span<const float> x, std::span<float> y) const {
  KVQ_ASSERT(x.size() == y.size() && x.size() % static_cast<std::size_t>(dim_) == 0);
  const auto n = static_cast<std::size_t>(dim_);
  if (rounds_ == 0)
    return loops_->multiply(x.data(), static_cast<std::int64_t>(x.size() / n), dim_, columns_.data(), dim_, y.data());
  const int block = hadamard_block(dim_);
  std::vector<float> moved(rounds_ > 1 ? n : 0);
  for (std::size_t row = 0; row < x.size(); row += n) {
    const float* __restrict in = x.data() + row;
    float* __restrict out = y.data() + row;
    const float* __restrict signs = table_.data();
    // The scale goes into the first round: ± scale is exact in sign, and the order is the same for every row.
    for (std::size_t index = 0; index < n; ++index) out[index] = in[index] * (signs[index] * scale_);
    loops_->mix_blocks(out, dim_, block);
    for (int round = 1; round < rounds_; ++round) {
      signs += n;
      for (std::size_t index = 0; index < n; ++index)
        moved[index] = out[static_cast<std::size_t>(dealt_[index])] * signs[index];
      std::copy(moved.begin(), moved.end(), out);
      loops_->mix_blocks(out, dim_, block);
    }
  }
}

void OrthogonalTransform::inverse(std::span<const float> y, std::span<float> x) const {
  KVQ_ASSERT(x.size() == y.size() && x.size() % static_cast<std::size_t>(dim_) == 0);
  const auto n = static_cast<std::size_t>(dim_);
  if (rounds_ == 0)
    return loops_->multiply(y.data(), static_cast<std::int64_t>(y.size() / n), dim_, table_.data(), dim_, x.data());
  const int block = hadamard_block(dim_);
  std::vector<float> moved(rounds_ > 1 ? n : 0);
  for (std::size_t row = 0; row < y.size(); row += n) {
    float* __restrict out = x.data() + row;
    std::copy_n(y.data() + row, n, out);
    loops_->mix_blocks(out, dim_, block);
    const float* __restrict signs = table_.data() + static_cast<std::size_t>(rounds_ - 1) * n;
    for (int round = rounds_ - 1; round > 0; --round, signs -= n) {
      for (std::size_t index = 0; index < n; ++index) moved[index] = out[index] * signs[index];
      for (std::size_t index = 0; index < n; ++index) out[index] = moved[static_cast<std::size_t>(back_[index])];
      loops_->mix_blocks(out, dim_, block);
    }
    for (std::size_t index = 0; index < n; ++index) out[index] *= signs[index] * scale_;
  }
}

void OrthogonalTransform::inverse_columns(float* block, int columns, std::vector<float>& scratch) const {
  const auto n = static_cast<std::size_t>(dim_), width = static_cast<std::size_t>(columns);
  if (rounds_ != 1) scratch.assign(block, block + n * width);
  if (rounds_ == 0) return loops_->multiply(columns_.data(), dim_, dim_, scratch.data(), columns, block);
  const auto scaled = [width](const float* from, float factor, float* to) {
    for (std::size_t column = 0; column < width; ++column) to[column] = from[column] * factor;
  };
  const int mixed = hadamard_block(dim_);
  loops_->mix_rows(block, dim_, columns, mixed);
  const float* signs = table_.data() + static_cast<std::size_t>(rounds_ - 1) * n;
  for (int round = rounds_ - 1; round > 0; --round, signs -= n) {
    for (std::size_t row = 0; row < n; ++row) scaled(block + row * width, signs[row], scratch.data() + row * width);
    for (std::size_t row = 0; row < n; ++row)
      std::copy_n(scratch.data() + static_cast<std::size_t>(back_[row]) * width, width, block + row * width);
    loops_->mix_rows(block, dim_, columns, mixed);
  }
  for (std::size_t row = 0; row < n; ++row) scaled(block + row * width, signs[row] * scale_, block + row * width);
}

}  // namespace kvq
