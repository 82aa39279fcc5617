#include <kvq/cache/settling_attention.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <kvq/core/error.h>
#include <kvq/model/cpu_loops.h>

namespace kvq {

namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMostQueries = 256;

/// `[tokens, kv_heads, head_dim]` to `[kv_heads, tokens, head_dim]`, fp32.
at::Tensor by_head(const at::Tensor& x) { return x.to(at::kFloat).permute({1, 0, 2}).contiguous(); }

/// One side, by head, for blocks of queries.
struct HeadTokens {
  explicit HeadTokens(const SettlingTokens& tokens)
      : window(tokens.window),
        settled(by_head(tokens.settled)),
        exact(tokens.window.waits() ? by_head(tokens.exact) : at::Tensor()),
        first_exact(tokens.first_exact) {}
  ExactWindow window;
  at::Tensor settled, exact;
  std::int64_t first_exact;

  at::Tensor settled_until(std::int64_t end) const { return settled.narrow(1, 0, end); }
  at::Tensor exact_between(std::int64_t begin, std::int64_t end) const {
    return exact.narrow(1, begin - first_exact, end - begin);
  }
};

/// Queries at positions [begin, end) against tokens [0, end). Rows of the blocks below: `[kv_heads, group * queries]`.
struct Block {
  std::int64_t begin, end;
  std::int64_t queries() const { return end - begin; }
  /// Tokens that are settled for the last query, and those from which on one may be exact for the first.
  std::int64_t settled(const ExactWindow& window) const { return window.settled(end); }
  std::int64_t first_exact(const ExactWindow& window) const { return window.waits() ? window.settled(begin + 1) : end; }
};

/// Calls visit(row of scores, position of its query) for the rows of `[kv_heads, group * queries, columns]`.
template <typename Visit>
void for_each_row(const at::Tensor& rows, const Block& block, Visit visit) {
  const std::int64_t count = rows.size(0) * rows.size(1), columns = rows.size(2);
  float* data = rows.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < count; ++row) visit(data + row * columns, block.begin + row % block.queries(), row);
}

/// What a row's query sees, as masks `[group * queries, tokens]` on the device of `rows`, the scores or weights: what
/// the loops over rows below do, by libtorch's operations.
struct Sight {
  Sight(const at::Tensor& rows, const Block& block, const ExactWindow& window)
      : position(column(rows, block, [](std::int64_t at) { return at; })),
        settled(column(rows, block, [&](std::int64_t at) { return window.settled(at + 1); })) {}
  at::Tensor position, settled;  ///< `[group * queries, 1]`: of the query; so many tokens are settled for it

  at::Tensor tokens(std::int64_t begin, std::int64_t end) const { return at::arange(begin, end, position.options()); }

 private:
  template <typename Number>
  static at::Tensor column(const at::Tensor& rows, const Block& block, const Number& number) {
    const at::Tensor numbers = at::empty({rows.size(1), 1}, at::TensorOptions().dtype(at::kLong));
    auto* out = numbers.mutable_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < rows.size(1); ++row) out[row] = number(block.begin + row % block.queries());
    return numbers.to(rows.device());
  }
};

at::Tensor scores_by_masks(const at::Tensor& from_settled, const at::Tensor& from_exact, const at::Tensor& result,
                           const Block& block, const ExactWindow& seen, std::int64_t window) {
  constexpr double kUnseen = -std::numeric_limits<double>::infinity();
  const Sight sight(result, block, seen);
  result.fill_(kUnseen);
  if (from_settled.defined()) {
    const std::int64_t settled = from_settled.size(2);
    result.narrow(2, 0, settled).copy_(from_settled.masked_fill(sight.tokens(0, settled).ge(sight.settled), kUnseen));
  }
  if (from_exact.defined()) {
    const std::int64_t first = block.end - from_exact.size(2);
    const at::Tensor token = sight.tokens(first, block.end), part = result.narrow(2, first, block.end - first);
    part.copy_(at::where(token.ge(sight.settled), from_exact.masked_fill(token.gt(sight.position), kUnseen), part));
  }
  if (window > 0) at::Tensor(result).masked_fill_(sight.tokens(0, block.end).le(sight.position.sub(window)), kUnseen);
  return result;
}

/// Scores of all tokens [0, block.end), -inf for those after the query, and before its window where there is one.
at::Tensor scores(const at::Tensor& query, const HeadTokens& keys, const Block& block, std::int64_t window) {
  const std::int64_t settled = block.settled(keys.window), first_exact = block.first_exact(keys.window);
  const at::Tensor result = at::empty({query.size(0), query.size(1), block.end}, query.options());
  at::Tensor from_settled, from_exact;
  if (settled > 0) from_settled = at::bmm(query, keys.settled_until(settled).transpose(1, 2));
  if (first_exact < block.end) from_exact = at::bmm(query, keys.exact_between(first_exact, block.end).transpose(1, 2));
  if (!takes_cpu_loops(query)) return scores_by_masks(from_settled, from_exact, result, block, keys.window, window);
  const float* a = settled > 0 ? from_settled.const_data_ptr<float>() : nullptr;
  const float* b = first_exact < block.end ? from_exact.const_data_ptr<float>() : nullptr;
  for_each_row(result, block, [&](float* row, std::int64_t position, std::int64_t index) {
    const std::int64_t mine = keys.window.settled(position + 1);
    if (mine > 0) std::copy_n(a + index * settled, mine, row);
    if (mine <= position) {
      const float* exact = b + index * (block.end - first_exact);
      std::copy(exact + (mine - first_exact), exact + (position + 1 - first_exact), row + mine);
    }
    std::fill(row + position + 1, row + block.end, -std::numeric_limits<float>::infinity());
    if (window > 0 && position >= window)
      std::fill(row, row + position + 1 - window, -std::numeric_limits<float>::infinity());
  });
  return result;
}

/// Σ weight · value, each value in the form that the query sees.
at::Tensor weighted_sum(const at::Tensor& weights, const HeadTokens& values, const Block& block) {
  const std::int64_t settled = block.settled(values.window), first_exact = block.first_exact(values.window);
  const auto part = [&](std::int64_t begin, std::int64_t end, bool of_settled) {
    if (!takes_cpu_loops(weights)) {
      const Sight sight(weights, block, values.window);
      const at::Tensor is_settled = sight.tokens(begin, end).lt(sight.settled);
      return weights.narrow(2, begin, end - begin).masked_fill(of_settled ? is_settled.logical_not() : is_settled, 0.0);
    }
    const at::Tensor chosen = at::empty({weights.size(0), weights.size(1), end - begin}, weights.options());
    const float* from = weights.const_data_ptr<float>();
    for_each_row(chosen, block, [&](float* row, std::int64_t position, std::int64_t index) {
      const std::int64_t mine = std::clamp(values.window.settled(position + 1), begin, end);
      const float* source = from + index * block.end;
      std::fill(row, row + (end - begin), 0.0f);
      if (of_settled) {
        std::copy(source + begin, source + mine, row);
      } else {
        std::copy(source + mine, source + end, row + (mine - begin));
      }
    });
    return chosen;
  };
  at::Tensor result = at::zeros({weights.size(0), weights.size(1), values.settled.size(2)}, weights.options());
  if (settled > 0) result.add_(at::bmm(part(0, settled, true), values.settled_until(settled)));
  if (first_exact < block.end) {
    result.add_(at::bmm(part(first_exact, block.end, false), values.exact_between(first_exact, block.end)));
  }
  return result;
}

}  // namespace

at::Tensor settling_attention(const at::Tensor& query, const SettlingTokens& keys, const SettlingTokens& values,
                              std::int64_t first_position, std::int64_t window) {
  const std::int64_t tokens = query.size(0), heads = query.size(1), head_dim = query.size(2);
  const std::int64_t kv_heads = keys.settled.size(1), group = heads / kv_heads, length = first_position + tokens;
  for (const SettlingTokens* side : {&keys, &values}) {
    KVQ_ASSERT(side->settled.size(0) == side->window.settled(length));
    KVQ_ASSERT(!side->window.waits() || (side->first_exact <= side->window.settled(first_position + 1) &&
                                         side->first_exact + side->exact.size(0) == length));
  }
  const HeadTokens head_keys(keys), head_values(values);
  const std::int64_t fitting = kBlockBytes / (heads * length * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t queries = std::clamp<std::int64_t>(fitting, 1, kMostQueries);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const at::Tensor scaled = query.to(at::kFloat).mul(scale).reshape({tokens, kv_heads, group, head_dim});
  const at::Tensor result = at::empty({tokens, kv_heads, group, head_dim}, scaled.options());
  for (std::int64_t first = 0; first < tokens; first += queries) {
    const std::int64_t count = std::min(queries, tokens - first);
    const Block block{first_position + first, first_position + first + count};
    const at::Tensor q =
        scaled.narrow(0, first, count).permute({1, 2, 0, 3}).reshape({kv_heads, group * count, head_dim});
    const at::Tensor weights = at::softmax(scores(q, head_keys, block, window), -1);
    const at::Tensor sums = weighted_sum(weights, head_values, block);
    result.narrow(0, first, count).copy_(sums.view({kv_heads, group, count, head_dim}).permute({2, 0, 1, 3}));
  }
  return result.reshape({tokens, heads, head_dim}).to(query.scalar_type());
}

}  // namespace kvq
