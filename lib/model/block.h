#pragma once
// One block: norm, attention, norm, gated MLP, each with its residual. Where the configuration says so, heads of
// queries and keys are normalised before RoPE, and what attention and MLP add is normalised before it is added.

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
