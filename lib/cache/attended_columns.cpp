#include <algorithm>
#include <cmath>
#include <limits>

#include <kvq/cache/internal/attended_columns.h>
#include <kvq/cache/page_loops.h>
#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

constexpr std::int64_t kFloatsOfLine = 16;  ///< PageLoops::multiply takes whole lines of columns

std::int64_t lines_of(std::int64_t count) { return (count + kFloatsOfLine - 1) / kFloatsOfLine * kFloatsOfLine; }

}  // namespace

AttendedColumns::AttendedColumns(int group, int head_dim)
    : group_(group), head_dim_(head_dim), value_stride_(lines_of(head_dim)) {}

std::int64_t AttendedColumns::stride() const { return lines_of(length_); }

void AttendedColumns::make_room() {
  if (length_ < room_) return;
  const std::int64_t room = lines_of(std::max<std::int64_t>(64, 2 * room_));
  std::vector<float> larger(static_cast<std::size_t>(head_dim_ * room));
  for (int channel = 0; channel < head_dim_; ++channel)
    std::copy_n(keys_.begin() + channel * room_, room_, larger.begin() + channel * room);
  keys_ = std::move(larger);
  values_.resize(static_cast<std::size_t>(room * value_stride_));
  room_ = room;
}

void AttendedColumns::append(const float* key, const float* value) {
  make_room();
  replace(length_++, key, value);
}

void AttendedColumns::replace(std::int64_t column, const float* key, const float* value) {
  for (int channel = 0; channel < head_dim_; ++channel)
    keys_[static_cast<std::size_t>(channel * room_ + column)] = key[channel];
  std::copy_n(value, head_dim_, values_.begin() + column * value_stride_);
}

const float* AttendedColumns::weigh(const float* query) {
  const VectorMath& math = vector_math();
  const std::int64_t columns = stride();
  float* scaled = query_.reserve(static_cast<std::size_t>(group_ * head_dim_));
  std::copy_n(query, group_ * head_dim_, scaled);
  math.scale(scaled, group_ * head_dim_, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_))));
  float* weights = weights_.reserve(static_cast<std::size_t>(group_ * columns));
  page_loops(best_simd_level())
      .multiply(scaled, head_dim_, group_, head_dim_, keys_.data(), static_cast<int>(room_), static_cast<int>(columns),
                weights, static_cast<int>(columns), false);
  for (int head = 0; head < group_; ++head) {
    float* row = weights + head * columns;
    for (const std::int64_t column : hidden_) row[column] = -std::numeric_limits<float>::infinity();
    const double total = math.exp_in_place(row, length_, math.max(row, length_));
    math.scale(row, length_, static_cast<float>(1.0 / total));
    for (const std::int64_t column : hidden_) row[column] = 0.0f;  // e^-inf is the least normal number here
    std::fill(row + length_, row + columns, 0.0f);
  }
  return weights;
}

void AttendedColumns::weighted_sum(float* result) {
  float* sums = sums_.reserve(static_cast<std::size_t>(group_ * value_stride_));
  page_loops(best_simd_level())
      .multiply(weights_.data(), static_cast<int>(stride()), group_, static_cast<int>(length_), values_.data(),
                static_cast<int>(value_stride_), static_cast<int>(value_stride_), sums, static_cast<int>(value_stride_),
                false);
  for (int head = 0; head < group_; ++head)
    std::copy_n(sums + head * value_stride_, head_dim_, result + head * head_dim_);
}

}  // namespace kvq
