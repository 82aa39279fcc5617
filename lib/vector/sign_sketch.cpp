#include <kvq/vector/sign_sketch.h>

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/vector/orthogonal.h>
#include <kvq/vector/orthogonal_loops.h>

namespace kvq {

SignSketch SignSketch::random(int dim, std::uint64_t seed) {
  Rng rng(seed);
  const std::vector<double> numbers =
      normal_numbers(rng, static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim));
  return {dim, {numbers.begin(), numbers.end()}};
}

SignSketch SignSketch::from_table(int dim, std::vector<float> table) {
  const std::size_t wanted = static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim);
  if (table.size() != wanted)
    fail(ErrorKind::Mismatch,
         fmt::format("sketch of {} channels has {} numbers; it needs {}", dim, table.size(), wanted));
  return {dim, std::move(table)};
}

SignSketch::SignSketch(int dim, std::vector<float> table)
    : loops_(&orthogonal_loops()),
      dim_(dim),
      scale_(static_cast<float>(std::sqrt(0.5 * std::numbers::pi) / dim)),
      table_(std::move(table)),
      columns_(table_.size()) {
  const auto n = static_cast<std::size_t>(dim);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = 0; column < n; ++column) columns_[column * n + row] = table_[row * n + column];
  }
}

void SignSketch::signs(std::span<const float> r, std::span<std::uint8_t> bits) const {
  KVQ_ASSERT(r.size() == bits.size() && r.size() % static_cast<std::size_t>(dim_) == 0);
  std::vector<float> projected(r.size());
  loops_->multiply(r.data(), static_cast<std::int64_t>(r.size()) / dim_, dim_, columns_.data(), dim_, projected.data());
  for (std::size_t index = 0; index < r.size(); ++index) bits[index] = projected[index] >= 0.0f ? 1 : 0;
}

void SignSketch::estimate(std::span<const std::uint8_t> bits, std::span<float> direction) const {
  KVQ_ASSERT(bits.size() == direction.size() && bits.size() % static_cast<std::size_t>(dim_) == 0);
  std::vector<float> signs(bits.size());
  for (std::size_t index = 0; index < bits.size(); ++index) signs[index] = bits[index] != 0 ? scale_ : -scale_;
  loops_->multiply(signs.data(), static_cast<std::int64_t>(bits.size()) / dim_, dim_, table_.data(), dim_,
                   direction.data());
}

}  // namespace kvq
