#include <kvq/model/block.h>

#include <ATen/ops/unsafe_split_with_sizes.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/elementwise.h>
#include <kvq/model/numeric_check.h>

namespace kvq {

at::Tensor block_forward(const ModelConfig& config, LinearMode mode, const LayerWeights& weights, int layer,
                         const at::Tensor& hidden, std::int64_t first_position, AttentionBackend& attention,
                         KvObserver* observer) {
  const KvShape& kv = config.kv;
  const std::int64_t tokens = hidden.size(0), query_width = std::int64_t{kv.heads} * kv.head_dim;
  const std::string where = fmt::format("layer {}", layer);

  const at::Tensor qkv =
      linear(mode, rms_norm(hidden, weights.attention_norm, config.norm_eps), weights.qkv, weights.qkv_bias);
  const std::vector<at::Tensor> parts = at::unsafe_split_with_sizes(qkv, {query_width, kv.width(), kv.width()}, 1);
  AttentionInput input;
  input.layer = layer;
  input.first_position = first_position;
  const auto heads = [&](const at::Tensor& part, std::int64_t count, const at::Tensor& norm) {
    if (!norm.defined()) return part.view({tokens, count, kv.head_dim});
    return rms_norm(part.reshape({tokens * count, kv.head_dim}), norm, config.norm_eps)
        .view({tokens, count, kv.head_dim});
  };
  input.query = heads(parts[0], kv.heads, weights.q_norm);
  input.key = heads(parts[1], kv.kv_heads, weights.k_norm);
  input.value = parts[2].view({tokens, kv.kv_heads, kv.head_dim});
  input.bf16 = mode != LinearMode::Fp32;
  check_finite(input.query, where, "query", first_position);
  check_finite(input.key, where, "key", first_position);
  check_finite(input.value, where, "value", first_position);
  if (observer) observer->observe(input);

  const at::Tensor attended = attention.attend(input).reshape({tokens, query_width});
  const auto onto = [&](const at::Tensor& residual, const at::Tensor& added, const at::Tensor& norm) {
    return norm.defined() ? rms_norm(added, norm, config.norm_eps).add_(residual) : added.add_(residual);
  };
  const at::Tensor middle =
      onto(hidden, linear(mode, attended, weights.o, weights.o_bias), weights.post_attention_norm);
  const at::Tensor gate_up = linear(mode, rms_norm(middle, weights.mlp_norm, config.norm_eps), weights.gate_up, {});
  const at::Tensor result =
      onto(middle, linear(mode, gated(config.activation, gate_up), weights.down, {}), weights.post_mlp_norm);
  check_finite(result, where, "output", first_position);
  return result;
}

}  // namespace kvq
