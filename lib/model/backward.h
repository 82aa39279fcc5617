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

/// About what one layer's graph holds, for plans and for Auto.
std::int64_t layer_graph_bytes(const ModelConfig& config, std::int64_t tokens);

/// One layer's tensors of one sequence; fp32, contiguous, CPU.
struct LayerGradients {
  int layer = 0;
  at::Tensor query;       ///< `[tokens, heads, head_dim]`, before RoPE
  at::Tensor key, value;  ///< `[tokens, kv_heads, head_dim]`
  at::Tensor key_grad, value_grad;
};

/// Calls `sink` for every layer, last layer first, and returns the mean loss. Throws Numeric naming layer, tensor and
/// position of the first NaN/Inf in activations or gradients.
double sequence_gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute,
                          const std::function<void(const LayerGradients&)>& sink);

}  // namespace kvq
