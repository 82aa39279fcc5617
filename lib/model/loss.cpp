#include <kvq/model/loss.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/numeric_check.h>
#include <kvq/model/softmax.h>

namespace kvq {

WindowLoss next_token_loss(Model& model, const at::Tensor& hidden, const std::vector<std::int32_t>& ids,
                           bool with_grad) {
  const std::int64_t tokens = hidden.size(0), predictions = tokens - 1;
  KVQ_ASSERT(static_cast<std::int64_t>(ids.size()) == tokens && predictions >= 1);
  WindowLoss loss;
  if (with_grad) {
    const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat).device(hidden.device());
    loss.hidden_grad = at::empty(hidden.sizes(), floats).zero_();
  }
  std::vector<double> nll(predictions);
  for (std::int64_t first = 0; first < predictions; first += kLogitChunk) {
    const std::int64_t count = std::min(kLogitChunk, predictions - first);
    const c10::AutoGradMode grad_mode(with_grad);
    const at::Tensor rows = hidden.narrow(0, first, count).detach().requires_grad_(with_grad);
    const at::Tensor logits = model.logits(rows);
    // In place on the logits' memory: the graph of the output matrix needs the weight alone, not its result.
    const at::Tensor scores = logits.detach();
    const std::span<const std::int32_t> targets(ids.data() + first + 1, count);
    const std::span<double> chunk_nll(nll.data() + first, count);
    if (with_grad) {
      cross_entropy_with_gradient(scores, targets, 1.0 / static_cast<double>(predictions), chunk_nll);
    } else {
      cross_entropy(scores, targets, chunk_nll);
    }
    for (std::int64_t row = 0; row < count; ++row) {
      if (!std::isfinite(chunk_nll[row])) {
        check_finite(model.logits(rows).detach(), "output", "logits", first);
        fail(ErrorKind::Numeric, fmt::format("output: loss of token {} is {}", first + row, chunk_nll[row]));
      }
    }
    if (with_grad) {
      logits.backward(scores);
      loss.hidden_grad.narrow(0, first, count).copy_(rows.grad());
    }
  }
  for (double value : nll) loss.mean_nll += value;
  loss.mean_nll /= static_cast<double>(predictions);
  return loss;
}

}  // namespace kvq
