#pragma once
// A sequence through the model, forward only.

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/model.h>

namespace kvq {

/// One layer's tensors of one sequence; fp32, contiguous, on the model's device.
struct LayerTensors {
  int layer = 0;
  at::Tensor query;       ///< `[tokens, heads, head_dim]`, before RoPE
  at::Tensor key, value;  ///< `[tokens, kv_heads, head_dim]`
};

/// Calls `sink` for every layer, first layer first, and returns the mean next-token loss. Throws Input for fewer than
/// two tokens, Numeric as Model::layer_forward does.
double sequence_forward(Model& model, const std::vector<std::int32_t>& ids,
                        const std::function<void(const LayerTensors&)>& sink);

}  // namespace kvq
