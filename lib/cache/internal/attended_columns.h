#pragma once
// Keys and values of one kv head as one query after another sees them, where a token's may change between two queries.
// Results follow from the tokens alone, whatever calls they came in. Not thread-safe.

#include <cstdint>
#include <vector>

#include <kvq/cache/aligned_floats.h>

namespace kvq {

class AttendedColumns {
 public:
  /// `group`: query heads.
  AttendedColumns(int group, int head_dim);

  /// `[head_dim]` each; keys rotated.
  void append(const float* key, const float* value);
  void replace(std::int64_t column, const float* key, const float* value);
  /// No query sees it any more.
  void hide(std::int64_t column) { hidden_.push_back(column); }
  std::int64_t length() const { return length_; }

  /// Softmax weights of query rows `[group, head_dim]`, one row of length() weights every stride() floats; valid until
  /// the next call. Hidden columns have 0.
  const float* weigh(const float* query);
  std::int64_t stride() const;
  /// Σ weight · value of the rows that weigh() gave, `[group, head_dim]`.
  void weighted_sum(float* result);

 private:
  void make_room();

  int group_, head_dim_;
  std::int64_t value_stride_, room_ = 0, length_ = 0;
  std::vector<float> keys_, values_;  ///< `[head_dim][room]`, `[room][value_stride]`
  std::vector<std::int64_t> hidden_;
  AlignedFloats query_, weights_, sums_;
};

}  // namespace kvq
