#pragma once
// How far a variant's predictions are from the unquantized ones, over one window, in chunks of logits.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/model.h>

namespace kvq {

/// One variant over a window's judged predictions: ids.size() - 1 less those before the first one.
struct WindowComparison {
  double nll = 0;                     ///< mean, nats
  std::vector<float> kl;              ///< KL(unquantized ‖ variant) of every predicted token, nats, >= 0
  std::int64_t same_top1 = 0;         ///< positions whose most likely token is the unquantized one's
  std::vector<float> token_nll = {};  ///< of every predicted token, nats
};

/// `hidden[0]` is the unquantized model's, the others are compared with it; each `[tokens, hidden]` fp32, before the
/// final norm. Judged are predictions from `first` on, 0 being that of the second token. The unquantized head runs
/// once. Memory: a few [kLogitChunk, vocab] tensors. Throws Numeric when a loss is not finite.
std::vector<WindowComparison> compare_window(Model& model, const std::vector<at::Tensor>& hidden,
                                             const std::vector<std::int32_t>& ids, std::int64_t first = 0);

}  // namespace kvq
