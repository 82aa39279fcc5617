#include <kvq/fit/query_metric.h>

#include <cmath>
#include <cstddef>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/head_rotation.h>

namespace kvq {

namespace {
constexpr std::int64_t kRootTokens = 256;
}

std::vector<double> rotated_metric(std::span<const double> metric, std::span<const float> rotation_scale,
                                   const KvShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.head_dim), width = static_cast<std::size_t>(shape.width());
  KVQ_ASSERT(metric.size() == width * dim && rotation_scale.size() == width);
  // Row i of every head becomes row i of R⁻ᵀ: what gradients are multiplied by.
  std::vector<float> inverse, rows(dim * width);
  for (const float scale : rotation_scale) inverse.push_back(1.0f / scale);
  for (std::size_t row = 0; row < dim; ++row)
    for (std::size_t first = 0; first < width; first += dim) rows[row * width + first + row] = 1.0f;
  HeadRotation(inverse, shape.kv_heads, shape.head_dim).forward(rows);

  std::vector<double> result(metric.size()), half(dim * dim);
  for (std::size_t head = 0; head < static_cast<std::size_t>(shape.kv_heads); ++head) {
    const auto turn = [&](std::size_t row, std::size_t column) {
      return static_cast<double>(rows[row * width + head * dim + column]);
    };
    const double* block = metric.data() + head * dim * dim;
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t column = 0; column < dim; ++column) {
        double sum = 0;
        for (std::size_t k = 0; k < dim; ++k) sum += block[row * dim + k] * turn(k, column);
        half[row * dim + column] = sum;
      }
    }
    double* out = result.data() + head * dim * dim;
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t column = row; column < dim; ++column) {
        double sum = 0;
        for (std::size_t k = 0; k < dim; ++k) sum += turn(k, row) * half[k * dim + column];
        out[row * dim + column] = out[column * dim + row] = sum;
      }
    }
  }
  return result;
}

std::vector<float> query_weight_roots(Side side, std::span<const double> metric, std::span<const float> mass,
                                      const KvShape& shape, int threads) {
  const auto dim = static_cast<std::size_t>(shape.head_dim), width = static_cast<std::size_t>(shape.width());
  KVQ_ASSERT(metric.size() == width * dim);
  std::vector<float> channel(width);
  for (std::size_t index = 0; index < width; ++index) {
    const std::size_t head = index / dim, own = index % dim;
    channel[index] = static_cast<float>(std::sqrt(metric[(head * dim + own) * dim + own]));
  }
  std::vector<float> roots(mass.size() * width);
  parallel_ranges(static_cast<std::int64_t>(mass.size()), kRootTokens, threads,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (auto token = static_cast<std::size_t>(begin); token < static_cast<std::size_t>(end); ++token) {
                      const float factor = side == Side::Key ? std::sqrt(mass[token]) : mass[token];
                      for (std::size_t index = 0; index < width; ++index)
                        roots[token * width + index] = factor * channel[index];
                    }
                  });
  return roots;
}

}  // namespace kvq
