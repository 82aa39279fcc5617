#include <kvq/model/blocked_attention.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Fewer, and launching kernels takes longer than they do; more, and most of what they compute is never seen.
constexpr std::int64_t kMostQueries = 512;

double score_scale(std::int64_t head_dim) { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }

struct BlockedAttention : torch::autograd::Function<BlockedAttention> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            std::int64_t first_position, std::int64_t window) {
    context->save_for_backward({query, keys, values});
    context->saved_data["first"] = first_position;
    context->saved_data["window"] = window;
    const BlockedScores scores(query, keys, first_position, window);
    at::Tensor result;
    for (const BlockedScores::Block& block : scores.blocks()) {
      const at::Tensor weights = at::softmax(scores.scores(block), -1).to(values.scalar_type());
      const at::Tensor sums = batched_product(weights, scores.seen(values, block));
      if (block.count == query.size(0)) {
        result = sums;
      } else {
        if (!result.defined())
          result = at::empty({sums.size(0), query.size(0) * scores.group(), sums.size(2)}, sums.options());
        scores.rows_of(result, block).copy_(sums);
      }
    }
    return scores.heads(result).to(query.scalar_type());
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &keys = saved[1], &values = saved[2];
    const auto type = query.scalar_type();
    const BlockedScores scores(query, keys, context->saved_data["first"].toInt(),
                               context->saved_data["window"].toInt());
    const double scale = score_scale(query.size(2));
    const at::Tensor above = scores.rows(grads[0]);
    const auto zeros = [](const at::Tensor& x) {
      return at::zeros({x.size(1), x.size(0), x.size(2)}, x.options().dtype(at::kFloat));
    };
    const at::Tensor query_grad = at::empty(above.sizes(), above.options().dtype(at::kFloat)), key_grad = zeros(keys),
                     value_grad = zeros(values);
    for (const BlockedScores::Block& block : scores.blocks()) {
      const at::Tensor weights = at::softmax(scores.scores(block), -1), grad = scores.rows_of(above, block);
      value_grad.narrow(1, block.begin, block.keys()).add_(batched_product(weights.to(type).transpose(1, 2), grad));
      // s = scores, w = softmax(s):  ds = w (dw − Σ w dw).
      at::Tensor slope = batched_product(grad, scores.seen(values, block).transpose(1, 2));
      slope.sub_(slope.mul(weights).sum({-1}, true)).mul_(weights).mul_(scale);
      slope = slope.to(type);
      scores.rows_of(query_grad, block).copy_(batched_product(slope, scores.seen(keys, block)));
      key_grad.narrow(1, block.begin, block.keys())
          .add_(batched_product(slope.transpose(1, 2), scores.query_rows(block)));
    }
    const auto by_token = [&](const at::Tensor& x) { return x.permute({1, 0, 2}).contiguous().to(type); };
    return {scores.heads(query_grad).to(type), by_token(key_grad), by_token(value_grad), {}, {}};
  }
};

}  // namespace

BlockedScores::BlockedScores(const at::Tensor& query, const at::Tensor& keys, std::int64_t first_position,
                             std::int64_t window)
    : keys_(keys),
      tokens_(query.size(0)),
      kv_heads_(keys.size(1)),
      group_(query.size(1) / keys.size(1)),
      head_dim_(query.size(2)),
      first_position_(first_position),
      window_(window >= keys.size(0) ? 0 : window) {
  KVQ_ASSERT(group_ * kv_heads_ == query.size(1) && keys.size(0) == first_position + tokens_);
  query_ = rows(query);
}

std::vector<BlockedScores::Block> BlockedScores::blocks() const {
  const std::int64_t one_query = kv_heads_ * group_ * keys_.size(0) * std::int64_t{sizeof(float)};
  const std::int64_t step = std::clamp<std::int64_t>(kScoreBytes / one_query, 1, kMostQueries);
  std::vector<Block> list;
  for (std::int64_t first = 0; first < tokens_; first += step) {
    const std::int64_t count = std::min(step, tokens_ - first), visible = first_position_ + first + 1;
    list.push_back({first, count, window_ > 0 ? std::max<std::int64_t>(0, visible - window_) : 0, visible + count - 1});
  }
  return list;
}

at::Tensor BlockedScores::rows(const at::Tensor& x) const {
  return x.reshape({tokens_, kv_heads_, group_, head_dim_})
      .permute({1, 0, 2, 3})
      .reshape({kv_heads_, tokens_ * group_, head_dim_});
}

at::Tensor BlockedScores::heads(const at::Tensor& rows) const {
  return rows.view({kv_heads_, tokens_, group_, head_dim_})
      .permute({1, 0, 2, 3})
      .reshape({tokens_, kv_heads_ * group_, head_dim_});
}

at::Tensor BlockedScores::scores(const Block& block) const {
  at::Tensor scores = batched_product(query_rows(block), seen(keys_, block).transpose(1, 2));
  scores.mul_(score_scale(head_dim_));
  const std::int64_t first = first_position_ + block.first;
  const bool one = block.count == 1;  // sees all of its keys
  if (one) return scores;
  const at::TensorOptions whole = scores.options().dtype(at::kLong);
  const at::Tensor position =
      at::arange(first, first + block.count, whole).unsqueeze(1).expand({block.count, group_}).reshape({-1, 1});
  const at::Tensor key = at::arange(block.begin, block.end, whole);
  at::Tensor unseen = key.gt(position);
  if (window_ > 0) unseen.logical_or_(key.le(position.sub(window_)));
  return scores.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
}

at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat) return at::bmm(a, b);
  // On the GPU bf16 operands may have an fp32 result; the CPU's would be rounded.
  if (a.is_cuda()) return at::bmm(a, b, at::kFloat);
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat));
}

at::Tensor blocked_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                             std::int64_t first_position, std::int64_t window) {
  return BlockedAttention::apply(query, keys, values, first_position, window);
}

}  // namespace kvq
