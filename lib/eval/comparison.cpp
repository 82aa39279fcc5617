#include <kvq/eval/comparison.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>

#include <kvq/core/error.h>
#include <kvq/model/loss.h>

namespace kvq {

std::vector<WindowComparison> compare_window(Model& model, const std::vector<at::Tensor>& hidden,
                                             const std::vector<std::int32_t>& ids) {
  const auto predictions = static_cast<std::int64_t>(ids.size()) - 1;
  std::vector<std::int64_t> targets(ids.begin() + 1, ids.end());
  const at::Tensor target = at::from_blob(targets.data(), {predictions, 1}, at::kLong);

  std::vector<WindowComparison> result(hidden.size());
  std::vector<double> nll_sum(hidden.size(), 0.0);
  for (WindowComparison& comparison : result) comparison.kl.reserve(predictions);

  for (std::int64_t begin = 0; begin < predictions; begin += kLogitChunk) {
    const std::int64_t count = std::min(kLogitChunk, predictions - begin);
    const at::Tensor wanted = target.narrow(0, begin, count);
    at::Tensor base, base_probability, base_top;
    for (std::size_t variant = 0; variant < hidden.size(); ++variant) {
      at::Tensor log_probability = at::log_softmax(model.logits(hidden[variant].narrow(0, begin, count)), -1);
      nll_sum[variant] -= at::gather(log_probability, 1, wanted).to(at::kDouble).sum().item<double>();
      const at::Tensor top = at::argmax(log_probability, -1);
      if (variant == 0) {
        base = log_probability;
        base_probability = base.exp();
        base_top = top;
        result[0].same_top1 += count;
        result[0].kl.insert(result[0].kl.end(), count, 0.0f);
        continue;
      }
      result[variant].same_top1 += top.eq(base_top).sum().item<std::int64_t>();
      // Rounding can leave a divergence of zero a hair below it.
      const at::Tensor kl = log_probability.neg_().add_(base).mul_(base_probability).sum(-1).clamp_min_(0.0);
      const float* values = kl.const_data_ptr<float>();
      result[variant].kl.insert(result[variant].kl.end(), values, values + count);
    }
  }
  for (std::size_t variant = 0; variant < hidden.size(); ++variant) {
    result[variant].nll = nll_sum[variant] / static_cast<double>(predictions);
    if (!std::isfinite(result[variant].nll)) {
      fail(ErrorKind::Numeric, fmt::format("cache {}: the window's mean loss is {}; the logits of the model hold NaN or infinity",
                                           variant, result[variant].nll));
    }
  }
  return result;
}

}  // namespace kvq
