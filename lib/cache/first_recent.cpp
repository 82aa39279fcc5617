// first-recent (StreamingLLM): all kv heads keep the same tokens, which follow from the position alone.

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>

#include <kvq/cache/internal/eviction_rules.h>
#include <kvq/core/error.h>
#include <kvq/model/linear.h>

namespace kvq {

namespace {

constexpr std::int64_t kQueryBlock = 128;  ///< queries that share columns

/// `[tokens, heads, head_dim]` to `[kv_heads, group · tokens, head_dim]`, fp32.
at::Tensor rows_by_head(const at::Tensor& query, std::int64_t kv_heads) {
  const std::int64_t tokens = query.size(0), group = query.size(1) / kv_heads;
  return query.to(at::kFloat)
      .reshape({tokens, kv_heads, group, query.size(2)})
      .permute({1, 2, 0, 3})
      .reshape({kv_heads, group * tokens, query.size(2)});
}

class FirstRecent final : public LayerEviction {
 public:
  FirstRecent(const EvictionRecipe& recipe, RopeTable& rope) : recipe_(recipe), rope_(rope) {}

  at::Tensor attend(const EvictionInput& input) override {
    const std::int64_t tokens = input.query.size(0);
    std::vector<at::Tensor> results;
    for (std::int64_t first = 0; first < tokens; first += kQueryBlock)
      results.push_back(block(input, first, std::min(kQueryBlock, tokens - first)));
    length_ = input.first_position + tokens;
    return at::cat(results, 0);
  }

  KeptTokens kept() const override {
    KeptTokens lists(1);
    for (std::int64_t token = 0; token < length_; ++token) {
      if (token < recipe_.first || token >= oldest(length_ - 1)) lists[0].push_back(token);
    }
    return lists;
  }

  void reset() override { length_ = 0; }

 private:
  /// Of the newest tokens that the query at `position` sees; at most `first` while nothing has been evicted.
  std::int64_t oldest(std::int64_t position) const {
    const std::int64_t length = position + 1;
    return std::max<std::int64_t>(length - (eviction_budget(recipe_, length) - recipe_.first), 0);
  }
  bool evicted(std::int64_t position) const { return oldest(position) > recipe_.first; }

  at::Tensor block(const EvictionInput& input, std::int64_t first_query, std::int64_t count) const {
    const std::int64_t kv_heads = input.keys.size(1), heads = input.query.size(1), head_dim = input.query.size(2);
    const std::int64_t begin = input.first_position + first_query, end = begin + count;
    const std::int64_t first = std::min<std::int64_t>(recipe_.first, end);
    const std::int64_t from = std::min(std::max(oldest(begin), first), end);
    const auto columns_of = [&](const at::Tensor& x) {
      return at::cat({x.narrow(0, 0, first), x.narrow(0, from, end - from)}, 0)
          .to(at::kFloat)
          .permute({1, 0, 2})
          .contiguous();
    };
    const at::Tensor keys = columns_of(input.keys), values = columns_of(input.values);
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    const at::Tensor query = rows_by_head(input.query.narrow(0, first_query, count), kv_heads).mul(scale);
    const at::Tensor scores = at::bmm(query, keys.transpose(1, 2));
    if (recipe_.cache_positions && first > 0 && evicted(end - 1)) {
      const at::Tensor moved = rows_by_head(by_cache_position(input, first_query, count), kv_heads).mul(scale);
      scores.narrow(2, 0, first).copy_(at::bmm(moved, keys.narrow(1, 0, first).transpose(1, 2)));
    }
    hide(scores, begin, count, first, from);
    const at::Tensor sums = at::bmm(at::softmax(scores, -1), values);
    return sums.view({kv_heads, heads / kv_heads, count, head_dim})
        .permute({2, 0, 1, 3})
        .reshape({count, heads, head_dim});
  }

  /// Queries as if kept tokens were all that there is; runs of queries that see equally many turn together.
  at::Tensor by_cache_position(const EvictionInput& input, std::int64_t first_query, std::int64_t count) const {
    std::vector<at::Tensor> runs;
    const auto position_of = [&](std::int64_t query) {
      return eviction_budget(recipe_, input.first_position + query + 1) - 1;
    };
    for (std::int64_t query = first_query; query < first_query + count;) {
      const std::int64_t position = position_of(query);
      std::int64_t last = query + 1;
      while (last < first_query + count && position_of(last) == position) ++last;
      const at::Tensor rows = input.unrotated_query.narrow(0, query, last - query);
      const at::Tensor as_heads = rows.reshape({1, rows.size(0) * rows.size(1), rows.size(2)});
      runs.push_back(attention_operand(rope_.apply(as_heads, position), input.bf16).reshape(rows.sizes()));
      query = last;
    }
    return at::cat(runs, 0);
  }

  /// -inf for what a row's query does not see.
  void hide(const at::Tensor& scores, std::int64_t begin, std::int64_t count, std::int64_t first,
            std::int64_t from) const {
    const std::int64_t rows = scores.size(0) * scores.size(1), columns = scores.size(2);
    float* data = scores.mutable_data_ptr<float>();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t position = begin + row % count;
      float* line = data + row * columns;
      const auto blank = [&](std::int64_t a, std::int64_t b) {
        if (a < b) std::fill(line + a, line + b, -std::numeric_limits<float>::infinity());
      };
      blank(std::min(position + 1, first), first);
      blank(first, std::min(std::max(oldest(position), from) - from + first, columns));
      blank(std::max(position + 1, from) - from + first, columns);
    }
  }

  EvictionRecipe recipe_;
  RopeTable& rope_;
  std::int64_t length_ = 0;
};

}  // namespace

std::unique_ptr<LayerEviction> make_first_recent(const EvictionRecipe& recipe, RopeTable& rope) {
  return std::make_unique<FirstRecent>(recipe, rope);
}

}  // namespace kvq
