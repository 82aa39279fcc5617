#pragma once
// Gradients of the mean next-token loss with respect to keys (before RoPE) and values of every layer, one sequence at a
// time. Layers are run again one by one on the way back, or kept where memory allows.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/model.h>

namespace kvq {

enum class Recompute {
  Auto,   ///< keep the graphs of as many layers as the memory that is free allows
  Layer,  ///< keep only layer boundaries
  None,   ///< keep everything
};
Recompute parse_recompute(const std::string& word);  ///< throws Usage

/// What besides the gradients of keys and values.
struct GradientsWanted {
  bool weights = false;      ///< LayerGradients::weight_grad
  bool query_heads = false;  ///< LayerGradients::key_head_grad and value_head_grad
};

/// About what one layer's graph holds, for plans and for Auto.
std::int64_t layer_graph_bytes(const ModelConfig& config, std::int64_t tokens, const GradientsWanted& wanted = {});

/// What a GPU needs besides, for intermediate results: attention's scores, element-wise work, logits.
std::int64_t device_scratch_bytes(const ModelConfig& config, std::int64_t tokens);

/// One layer's tensors of one sequence; fp32, contiguous, on the model's device.
struct LayerGradients {
  int layer = 0;
  at::Tensor query;       ///< `[tokens, heads, head_dim]`, before RoPE
  at::Tensor key, value;  ///< `[tokens, kv_heads, head_dim]`
  at::Tensor key_grad, value_grad;
  /// What each query head contributes to them, `[tokens, heads, head_dim]`: over the query heads of a kv head they add
  /// up to key_grad and value_grad. With GradientsWanted::query_heads.
  at::Tensor key_head_grad, value_head_grad;
  std::vector<at::Tensor> weight_grad;  ///< by BlockMatrix, `[rows, columns]`; with GradientsWanted::weights
};

/// Calls `sink` for every layer, last layer first, and returns the mean loss. Throws Numeric naming layer, tensor and
/// position of the first NaN/Inf in activations or gradients (those of weights are left to the caller).
double sequence_gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute,
                          const std::function<void(const LayerGradients&)>& sink, const GradientsWanted& wanted = {});

}  // namespace kvq
