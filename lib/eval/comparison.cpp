#include <kvq/eval/comparison.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/loss.h>
#include <kvq/model/softmax.h>

namespace kvq {

std::vector<WindowComparison> compare_window(Model& model, const std::vector<at::Tensor>& hidden,
                                             const std::vector<std::int32_t>& ids, std::int64_t first) {
  const auto end = static_cast<std::int64_t>(ids.size()) - 1, predictions = end - first;
  KVQ_ASSERT(first >= 0 && predictions > 0);
  std::vector<WindowComparison> result(hidden.size());
  std::vector<double> nll_sum(hidden.size(), 0.0);
  for (WindowComparison& comparison : result) {
    comparison.kl.reserve(predictions);
    comparison.token_nll.reserve(predictions);
  }

  for (std::int64_t begin = first; begin < end; begin += kLogitChunk) {
    const std::int64_t count = std::min(kLogitChunk, end - begin);
    at::Tensor base;
    std::vector<double> base_lse(count), lse(count), kl(count);
    std::vector<std::int64_t> base_top(count), top(count);
    for (std::size_t variant = 0; variant < hidden.size(); ++variant) {
      const at::Tensor logits = model.logits(hidden[variant].narrow(0, begin, count));
      log_sum_exp(logits, lse, top);
      const std::vector<float> scores = scores_of(logits, {ids.data() + begin + 1, static_cast<std::size_t>(count)});
      for (std::int64_t row = 0; row < count; ++row) {
        const double nll = lse[row] - scores[row];
        nll_sum[variant] += nll;
        result[variant].token_nll.push_back(static_cast<float>(nll));
      }
      if (variant == 0) {
        base = logits;
        base_lse = lse;
        base_top = top;
        std::fill(kl.begin(), kl.end(), 0.0);
      } else {
        kl_divergence(base, base_lse, logits, lse, kl);
      }
      for (std::int64_t row = 0; row < count; ++row) result[variant].same_top1 += top[row] == base_top[row] ? 1 : 0;
      result[variant].kl.insert(result[variant].kl.end(), kl.begin(), kl.end());
    }
  }
  for (std::size_t variant = 0; variant < hidden.size(); ++variant) {
    result[variant].nll = nll_sum[variant] / static_cast<double>(predictions);
    if (!std::isfinite(result[variant].nll)) {
      fail(ErrorKind::Numeric,
           fmt::format("cache {}: the window's mean loss is {}; the logits of the model hold NaN or infinity", variant,
                       result[variant].nll));
    }
  }
  return result;
}

}  // namespace kvq
