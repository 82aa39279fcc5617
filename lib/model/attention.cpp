#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <kvq/core/error.h>
#include <kvq/model/blocked_attention.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/linear.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace {

/// Queries that share a mask when a prefix stands before them: [kMaskedQueries, keys] is all that exists of it.
constexpr std::int64_t kMaskedQueries = 128;

/// Attention of `[kv_heads, group, queries, head_dim]` over `[kv_heads, group, keys, head_dim]` by the tiled kernel,
/// called by name: the general entry point may choose one that builds [heads, queries, keys].
at::Tensor flash(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, bool causal,
                 const std::optional<at::Tensor>& mask) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, mask));
}

/// Query i of the block sees the first `visible + i` of `keys` keys, of them the last `window` where that is not 0.
at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t visible, std::int64_t window) {
  at::Tensor mask =
      at::full({queries, keys}, -std::numeric_limits<float>::infinity(), at::TensorOptions().dtype(at::kFloat));
  float* out = mask.mutable_data_ptr<float>();
  for (std::int64_t query = 0; query < queries; ++query) {
    const std::int64_t end = visible + query, begin = window > 0 ? std::max<std::int64_t>(0, end - window) : 0;
    std::fill_n(out + query * keys + begin, end - begin, 0.0f);
  }
  return mask;
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            std::int64_t first_position, std::int64_t window) {
  const std::int64_t tokens = query.size(0), heads = query.size(1), head_dim = query.size(2);
  const std::int64_t kv_heads = keys.size(1), group = heads / kv_heads, length = keys.size(0);
  KVQ_ASSERT(group * kv_heads == heads && length == first_position + tokens && values.size(0) == length);
  if (window >= length) window = 0;
  if (!takes_cpu_loops(query)) return blocked_attention(query, keys, values, first_position, window);
  // One kv head is one entry of the batch; its queries are the heads, over which its keys are repeated without a copy.
  const at::Tensor q = query.reshape({tokens, kv_heads, group, head_dim}).permute({1, 2, 0, 3});
  const at::Tensor k = keys.permute({1, 0, 2}).unsqueeze(1).expand({kv_heads, group, length, head_dim});
  const at::Tensor v = values.permute({1, 0, 2}).unsqueeze(1).expand({kv_heads, group, length, head_dim});
  at::Tensor result;
  if (window == 0 && (first_position == 0 || tokens == 1)) {
    result = flash(q, k, v, first_position == 0, std::nullopt);
  } else if (tokens == 1) {
    result = flash(q, k.narrow(2, length - window, window), v.narrow(2, length - window, window), false, std::nullopt);
  } else {
    std::vector<at::Tensor> blocks;
    for (std::int64_t first = 0; first < tokens; first += kMaskedQueries) {
      const std::int64_t count = std::min(kMaskedQueries, tokens - first), visible = first_position + first + 1;
      // Keys that the block's first query no longer sees are seen by none of it.
      const std::int64_t begin = window > 0 ? std::max<std::int64_t>(0, visible - window) : 0;
      const std::int64_t seen = visible + count - 1 - begin;
      const at::Tensor mask = causal_mask(count, seen, visible - begin, window).to(q.scalar_type());
      blocks.push_back(
          flash(q.narrow(2, first, count), k.narrow(2, begin, seen), v.narrow(2, begin, seen), false, mask));
    }
    result = at::cat(blocks, 2);
  }
  return result.permute({2, 0, 1, 3}).reshape({tokens, heads, head_dim});
}

ExactAttention::ExactAttention(const KvShape& shape, const ModelRope& rope)
    : rope_(rope), tables_(rope), layers_(shape.layers) {}

void ExactAttention::Grown::append(const at::Tensor& more) {
  const std::int64_t added = more.size(0);
  if (length == 0) {
    store = more.contiguous();
  } else if (c10::GradMode::is_enabled() && (more.requires_grad() || store.requires_grad())) {
    store = at::cat({store.narrow(0, 0, length), more}, 0);
  } else {
    if (length + added > store.size(0)) {
      // Doubling, so that a token by token continuation copies each token a constant number of times.
      at::Tensor larger =
          at::empty({std::max(2 * store.size(0), length + added), more.size(1), more.size(2)}, more.options());
      larger.narrow(0, 0, length).copy_(store.narrow(0, 0, length));
      store = larger;
    }
    store.narrow(0, length, added).copy_(more);
  }
  length += added;
}

at::Tensor ExactAttention::attend(const AttentionInput& input) {
  Layer& layer = layers_.at(input.layer);
  KVQ_ASSERT(layer.key.length == input.first_position);
  RopeTable& table = tables_.of(input.layer);
  layer.key.append(attention_operand(table.apply(input.key, input.first_position), input.bf16));
  layer.value.append(attention_operand(input.value, input.bf16));
  const at::Tensor query = attention_operand(table.apply(input.query, input.first_position), input.bf16);
  return causal_attention(query, layer.key.all(), layer.value.all(), input.first_position, rope_.window_of(input.layer))
      .to(input.query.scalar_type());
}

void ExactAttention::reset() { layers_.assign(layers_.size(), {}); }

}  // namespace kvq
