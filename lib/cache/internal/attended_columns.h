#pragma once
// Keys and values of one kv head as one query after another sees them, where a token's may change between two queries.
// Results follow from the tokens alone, whatever calls they came in. Not thread-safe.

#include <cstdint>
#include <vector>

#include <kvq/cache/internal/token_columns.h>

namespace kvq {

class AttendedColumns {
 public:
  /// `group`: query heads.
  AttendedColumns(int group, int head_dim) : group_(group), columns_(head_dim) {}

  /// `[head_dim]` each; keys rotated.
  void append(const float* key, const float* value) { columns_.append(key, value); }
  void replace(std::int64_t column, const float* key, const float* value) { columns_.replace(column, key, value); }
  /// No query sees it any more.
  void hide(std::int64_t column) { hidden_.push_back(column); }
  std::int64_t length() const { return columns_.length(); }

  /// Softmax weights of query rows `[group, head_dim]`, one row of length() weights every stride() floats; valid until
  /// the next call. Hidden columns have 0.
  const float* weigh(const float* query) {
    float* weights = columns_.scores(query, {1, group_, 0});
    for (int head = 0; head < group_; ++head) weigh_scores(weights + head * stride(), length(), stride(), hidden_);
    return weights;
  }
  std::int64_t stride() const { return columns_.stride(); }
  /// Σ weight · value of the rows that weigh() gave, `[group, head_dim]`.
  void weighted_sum(float* result) { columns_.weighted_sums(result, {1, group_, 0}); }

 private:
  int group_;
  TokenColumns columns_;
  std::vector<std::int64_t> hidden_;
};

}  // namespace kvq
