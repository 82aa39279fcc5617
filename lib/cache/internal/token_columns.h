#pragma once
// Keys and values of one kv head, a token a column, and what query rows make of them. Not thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/cache/aligned_floats.h>

namespace kvq {

class TokenColumns {
 public:
  explicit TokenColumns(int head_dim);

  std::int64_t length() const { return length_; }
  /// `[head_dim]` each; keys rotated.
  void append(const float* key, const float* value);
  void replace(std::int64_t column, const float* key, const float* value);
  /// Ascending columns stay, close together; the others are lost.
  void keep(std::span<const std::int64_t> columns);

  /// Floats from one row of scores to the next: length() in whole cache lines.
  std::int64_t stride() const;
  /// Query rows `[queries][group][head_dim]`, `stride` floats from one query to the next.
  struct Rows {
    int queries, group;
    std::int64_t stride;
  };
  /// q·k/√head_dim, `[queries · group, stride()]`; valid until the next call.
  float* scores(const float* query, const Rows& rows);
  /// Σ weight · value over what scores() gave, as it stands now; `result` as `query` there.
  void weighted_sums(float* result, const Rows& rows);

 private:
  void make_room();

  int head_dim_;
  std::int64_t value_stride_, room_ = 0, length_ = 0;
  std::vector<float> keys_, values_;  ///< `[head_dim][room]`, `[room][value_stride]`
  AlignedFloats query_, scores_, sums_;
};

/// One row of scores becomes softmax weights of its first `seen` columns; `hidden` ones and those behind, up to
/// `stride`, have 0.
void weigh_scores(float* scores, std::int64_t seen, std::int64_t stride, std::span<const std::int64_t> hidden);

}  // namespace kvq
