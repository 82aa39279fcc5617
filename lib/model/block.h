#pragma once
// One Llama block: norm, attention, norm, SwiGLU, each with its residual.

#include <ATen/core/Tensor.h>

#include <kvq/model/attention_backend.h>
#include <kvq/model/config.h>
#include <kvq/model/weights.h>

namespace kvq {

/// `hidden` and result `[tokens, hidden]` fp32. Keys, values and queries are handed to attention and observer in fp32
/// in every mode. Throws Numeric naming layer, tensor and position of the first NaN/Inf.
at::Tensor block_forward(const ModelConfig& config, LinearMode mode, const LayerWeights& weights, int layer,
                         const at::Tensor& hidden, std::int64_t first_position, AttentionBackend& attention,
                         KvObserver* observer);

}  // namespace kvq
