#pragma once
// Next-token cross-entropy over a window in chunks: never a [tokens, vocab] tensor for the whole window.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/model.h>

namespace kvq {

/// Tokens per chunk of logits.
inline constexpr std::int64_t kLogitChunk = 256;

struct WindowLoss {
  double mean_nll = 0;     ///< over the ids.size() - 1 predicted tokens, natural log
  at::Tensor hidden_grad;  ///< d mean_nll / d hidden, `[tokens, hidden]` fp32; undefined unless asked for
};

/// `hidden`: final hidden states of the window (before the final norm), `[tokens, hidden]`.
WindowLoss next_token_loss(Model& model, const at::Tensor& hidden, const std::vector<std::int32_t>& ids,
                           bool with_grad);

}  // namespace kvq
