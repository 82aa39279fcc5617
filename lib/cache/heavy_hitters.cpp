// h2o: each kv head keeps the newest tokens and, of the others, those that queries have given most weight.
//
// Tokens stand in columns, oldest first. Evicted ones keep theirs, hidden, until the next multiple of kColumnBlock
// tokens; so what stands in which column, and the order of all sums, follows from the position alone, and a head's
// choice comes out the same to the bit however the tokens are cut into calls.

#include <algorithm>
#include <limits>

#include <ATen/ops/empty.h>

#include <kvq/cache/internal/eviction_rules.h>
#include <kvq/cache/internal/token_columns.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

constexpr std::int64_t kColumnBlock = 64;
constexpr float kNever = std::numeric_limits<float>::infinity();

/// One kv head.
class Head {
 public:
  Head(const EvictionRecipe& recipe, int group, int head_dim) : recipe_(&recipe), group_(group), columns_(head_dim) {}

  std::vector<std::int64_t> kept() const {
    std::vector<std::int64_t> list;
    for (std::size_t column = 0; column < position_.size(); ++column) {
      if (weight_[column] != kNever) list.push_back(position_[column]);
    }
    return list;
  }

  /// Tokens `first` … `first + count`, all of one block. Rows of this head: key and value `[count]`, query and result
  /// `[count, group]`, at their strides, `[head_dim]` each.
  struct Tokens {
    std::int64_t first, count;
    const float *key, *value, *query;
    std::int64_t kv_stride, query_stride;
    float* result;
  };
  void run(const Tokens& tokens) {
    if (tokens.first % kColumnBlock == 0) compact();
    const std::int64_t before = columns_.length();
    for (std::int64_t token = 0; token < tokens.count; ++token) {
      columns_.append(tokens.key + token * tokens.kv_stride, tokens.value + token * tokens.kv_stride);
      position_.push_back(tokens.first + token);
      weight_.push_back(0.0f);
    }
    const TokenColumns::Rows rows = {static_cast<int>(tokens.count), group_, tokens.query_stride};
    float* scores = columns_.scores(tokens.query, rows);
    for (std::int64_t token = 0; token < tokens.count; ++token)
      answer(tokens.first + token, before + token + 1, scores + token * group_ * columns_.stride());
    columns_.weighted_sums(tokens.result, rows);
  }

 private:
  /// The query at `position`, whose own token is the last of `seen` columns: evicts, then turns its scores into
  /// weights.
  void answer(std::int64_t position, std::int64_t seen, float* scores) {
    const std::int64_t budget = eviction_budget(*recipe_, position + 1);
    const std::int64_t newest = budget - heavy_budget(*recipe_, budget);
    while (kept_ + 1 > budget) {
      // Columns are in order of position, so what is not among the newest is a prefix.
      const auto end = std::upper_bound(position_.begin(), position_.begin() + seen, position - newest);
      const std::int64_t column = lightest(weight_, end - position_.begin());
      KVQ_ASSERT(column < end - position_.begin() && weight_[static_cast<std::size_t>(column)] != kNever);
      weight_[static_cast<std::size_t>(column)] = kNever;
      hidden_.push_back(column);
      --kept_;
    }
    ++kept_;
    for (int head = 0; head < group_; ++head, scores += columns_.stride()) {
      weigh_scores(scores, seen, columns_.stride(), hidden_);
      for (std::int64_t column = 0; column < seen; ++column)
        weight_[static_cast<std::size_t>(column)] += scores[column];
    }
  }

  /// Evicted tokens lose their columns.
  void compact() {
    if (hidden_.empty()) return;
    std::size_t to = 0;
    std::vector<std::int64_t> from;
    for (std::size_t column = 0; column < position_.size(); ++column) {
      if (weight_[column] == kNever) continue;
      from.push_back(static_cast<std::int64_t>(column));
      position_[to] = position_[column], weight_[to] = weight_[column];
      ++to;
    }
    position_.resize(to), weight_.resize(to);
    columns_.keep(from);
    hidden_.clear();
  }

  const EvictionRecipe* recipe_;
  int group_;
  std::int64_t kept_ = 0;
  TokenColumns columns_;
  std::vector<std::int64_t> position_, hidden_;
  std::vector<float> weight_;  ///< kNever: evicted
};

class HeavyHitters final : public LayerEviction {
 public:
  HeavyHitters(const EvictionRecipe& recipe, const KvShape& shape, int threads)
      : recipe_(recipe), shape_(shape), threads_(threads) {
    reset();
  }

  at::Tensor attend(const EvictionInput& input) override {
    const std::int64_t tokens = input.query.size(0), kv_width = shape_.width(),
                       query_width = shape_.heads * shape_.head_dim;
    const auto newest = [&](const at::Tensor& x) {
      return x.narrow(0, input.first_position, tokens).to(at::kFloat).contiguous();
    };
    const at::Tensor query = input.query.to(at::kFloat).contiguous(), key = newest(input.keys),
                     value = newest(input.values);
    const at::Tensor result = at::empty({tokens, shape_.heads, shape_.head_dim}, query.options());
    parallel_for(shape_.kv_heads, threads_, [&](std::int64_t head) {
      const std::int64_t of_kv = head * shape_.head_dim, of_query = of_kv * shape_.queries_per_kv_head();
      for (std::int64_t token = 0; token < tokens;) {
        const std::int64_t first = input.first_position + token;
        const std::int64_t count = std::min(kColumnBlock - first % kColumnBlock, tokens - token);
        const std::int64_t kv_at = token * kv_width + of_kv, query_at = token * query_width + of_query;
        heads_[static_cast<std::size_t>(head)].run({first, count, key.const_data_ptr<float>() + kv_at,
                                                    value.const_data_ptr<float>() + kv_at,
                                                    query.const_data_ptr<float>() + query_at, kv_width, query_width,
                                                    result.mutable_data_ptr<float>() + query_at});
        token += count;
      }
    });
    return result;
  }

  KeptTokens kept() const override {
    KeptTokens lists;
    for (const Head& head : heads_) lists.push_back(head.kept());
    return lists;
  }

  void reset() override {
    heads_.assign(static_cast<std::size_t>(shape_.kv_heads),
                  Head(recipe_, shape_.queries_per_kv_head(), shape_.head_dim));
  }

 private:
  const EvictionRecipe recipe_;
  KvShape shape_;
  int threads_;
  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<LayerEviction> make_heavy_hitters(const EvictionRecipe& recipe, const KvShape& shape, int threads) {
  return std::make_unique<HeavyHitters>(recipe, shape, threads);
}

}  // namespace kvq
