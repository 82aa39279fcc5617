#include <kvq/model/softmax.h>

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>

#include <kvq/core/error.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/internal/tensor_ops.h>
#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

void check(const at::Tensor& logits, std::size_t rows) {
  KVQ_ASSERT(logits.scalar_type() == at::kFloat && logits.dim() == 2 && logits.is_contiguous());
  KVQ_ASSERT(static_cast<std::size_t>(logits.size(0)) == rows);
}

template <class Body>
void for_rows(std::int64_t rows, const Body& body) {
  at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void log_sum_exp(const at::Tensor& logits, std::span<double> result, std::span<std::int64_t> arg_max) {
  check(logits, result.size());
  KVQ_ASSERT(arg_max.empty() || arg_max.size() == result.size());
  if (!takes_cpu_loops(logits)) return tensor_ops::log_sum_exp(logits, result, arg_max);
  const std::int64_t vocab = logits.size(1);
  const float* data = logits.const_data_ptr<float>();
  for_rows(logits.size(0), [&](std::int64_t row) {
    const float* scores = data + row * vocab;
    const float largest = vector_math().max(scores, vocab);
    result[row] = largest + std::log(vector_math().sum_exp(scores, vocab, largest));
    if (!arg_max.empty()) arg_max[row] = std::find(scores, scores + vocab, largest) - scores;
  });
}

void kl_divergence(const at::Tensor& base, std::span<const double> base_lse, const at::Tensor& other,
                   std::span<const double> other_lse, std::span<double> kl) {
  check(base, kl.size());
  check(other, kl.size());
  KVQ_ASSERT(base.size(1) == other.size(1) && base_lse.size() == kl.size() && other_lse.size() == kl.size());
  if (!takes_cpu_loops(base)) return tensor_ops::kl_divergence(base, base_lse, other, other_lse, kl);
  const std::int64_t vocab = base.size(1);
  const float *a = base.const_data_ptr<float>(), *b = other.const_data_ptr<float>();
  for_rows(base.size(0), [&](std::int64_t row) {
    const double sum =
        vector_math().divergence(a + row * vocab, b + row * vocab, vocab, static_cast<float>(base_lse[row]),
                                 static_cast<float>(base_lse[row] - other_lse[row]));
    kl[row] = std::max(sum, 0.0);  // rounding can leave a divergence of zero a hair below it
  });
}

std::vector<float> scores_of(const at::Tensor& logits, std::span<const std::int32_t> targets) {
  check(logits, targets.size());
  std::vector<float> scores;
  if (!takes_cpu_loops(logits)) {
    const at::Tensor picked = tensor_ops::picked(logits, targets);
    scores.assign(picked.const_data_ptr<float>(), picked.const_data_ptr<float>() + targets.size());
    return scores;
  }
  const float* data = logits.const_data_ptr<float>();
  for (std::size_t row = 0; row < targets.size(); ++row)
    scores.push_back(data[static_cast<std::int64_t>(row) * logits.size(1) + targets[row]]);
  return scores;
}

void cross_entropy(const at::Tensor& logits, std::span<const std::int32_t> targets, std::span<double> nll) {
  log_sum_exp(logits, nll);
  const std::vector<float> scores = scores_of(logits, targets);
  for (std::size_t row = 0; row < nll.size(); ++row) nll[row] -= scores[row];
}

void cross_entropy_with_gradient(const at::Tensor& logits, std::span<const std::int32_t> targets, double scale,
                                 std::span<double> nll) {
  check(logits, nll.size());
  if (!takes_cpu_loops(logits)) return tensor_ops::cross_entropy_with_gradient(logits, targets, scale, nll);
  const std::int64_t vocab = logits.size(1);
  float* data = logits.mutable_data_ptr<float>();
  for_rows(logits.size(0), [&](std::int64_t row) {
    float* scores = data + row * vocab;
    const float largest = vector_math().max(scores, vocab);
    const float target = scores[targets[row]];
    const double sum = vector_math().exp_in_place(scores, vocab, largest);
    nll[row] = largest + std::log(sum) - target;
    vector_math().scale(scores, vocab, static_cast<float>(scale / sum));
    scores[targets[row]] -= static_cast<float>(scale);
  });
}

}  // namespace kvq
