#include <algorithm>
#include <cmath>
#include <limits>

#include <kvq/cache/internal/token_columns.h>
#include <kvq/cache/page_loops.h>
#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

constexpr std::int64_t kLine = 16;  ///< floats; PageLoops::multiply takes whole lines of columns

std::int64_t whole_lines(std::int64_t count) { return (count + kLine - 1) / kLine * kLine; }

}  // namespace

TokenColumns::TokenColumns(int head_dim) : head_dim_(head_dim), value_stride_(whole_lines(head_dim)) {}

std::int64_t TokenColumns::stride() const { return whole_lines(length_); }

void TokenColumns::make_room() {
  if (length_ < room_) return;
  const std::int64_t room = whole_lines(std::max<std::int64_t>(64, 2 * room_));
  std::vector<float> larger(static_cast<std::size_t>(head_dim_ * room));
  for (int channel = 0; channel < head_dim_; ++channel)
    std::copy_n(keys_.begin() + channel * room_, room_, larger.begin() + channel * room);
  keys_ = std::move(larger);
  values_.resize(static_cast<std::size_t>(room * value_stride_));
  room_ = room;
}

void TokenColumns::append(const float* key, const float* value) {
  make_room();
  replace(length_++, key, value);
}

void TokenColumns::replace(std::int64_t column, const float* key, const float* value) {
  for (int channel = 0; channel < head_dim_; ++channel)
    keys_[static_cast<std::size_t>(channel * room_ + column)] = key[channel];
  std::copy_n(value, head_dim_, values_.begin() + column * value_stride_);
}

void TokenColumns::keep(std::span<const std::int64_t> columns) {
  for (int channel = 0; channel < head_dim_; ++channel) {
    float* row = keys_.data() + channel * room_;
    for (std::size_t to = 0; to < columns.size(); ++to) row[to] = row[columns[to]];
  }
  for (std::size_t to = 0; to < columns.size(); ++to)
    std::copy_n(values_.begin() + columns[to] * value_stride_, head_dim_,
                values_.begin() + static_cast<std::int64_t>(to) * value_stride_);
  length_ = static_cast<std::int64_t>(columns.size());
}

float* TokenColumns::scores(const float* query, const Rows& rows) {
  const std::int64_t of_query = std::int64_t{rows.group} * head_dim_, floats = rows.queries * of_query;
  const int all = rows.queries * rows.group;
  float* scaled = query_.reserve(static_cast<std::size_t>(floats));
  for (int index = 0; index < rows.queries; ++index)
    std::copy_n(query + index * rows.stride, of_query, scaled + index * of_query);
  vector_math().scale(scaled, floats, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_))));
  float* scores = scores_.reserve(static_cast<std::size_t>(all * stride()));
  page_loops(best_simd_level())
      .multiply(scaled, head_dim_, all, head_dim_, keys_.data(), static_cast<int>(room_), static_cast<int>(stride()),
                scores, static_cast<int>(stride()), false);
  return scores;
}

void TokenColumns::weighted_sums(float* result, const Rows& rows) {
  const int all = rows.queries * rows.group, width = static_cast<int>(value_stride_);
  float* sums = sums_.reserve(static_cast<std::size_t>(all * value_stride_));
  page_loops(best_simd_level())
      .multiply(scores_.data(), static_cast<int>(stride()), all, static_cast<int>(length_), values_.data(), width,
                width, sums, width, false);
  for (int row = 0; row < all; ++row)
    std::copy_n(sums + row * value_stride_, head_dim_,
                result + row / rows.group * rows.stride + row % rows.group * head_dim_);
}

void weigh_scores(float* scores, std::int64_t seen, std::int64_t stride, std::span<const std::int64_t> hidden) {
  const VectorMath& math = vector_math();
  for (const std::int64_t column : hidden) scores[column] = -std::numeric_limits<float>::infinity();
  const double total = math.exp_in_place(scores, seen, math.max(scores, seen));
  math.scale(scores, seen, static_cast<float>(1.0 / total));
  for (const std::int64_t column : hidden) scores[column] = 0.0f;  // e^-inf is the least normal number here
  std::fill(scores + seen, scores + stride, 0.0f);
}

}  // namespace kvq
