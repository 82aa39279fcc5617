#pragma once
// Cross-entropy of rows of logits, in one or two passes over each row while it is in the cache. Sums are taken in
// double: an fp32 log-softmax over 49152 classes is off by 5e-6, always to the same side, which shifts every gradient.

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kvq {

/// nll[row] = log Σ exp(logits[row]) − logits[row, target]; `[rows, vocab]` fp32, contiguous, on any device.
void cross_entropy(const at::Tensor& logits, std::span<const std::int32_t> targets, std::span<double> nll);

/// The same, and overwrites the logits with scale · d nll / d logits = scale · (softmax − one-hot).
void cross_entropy_with_gradient(const at::Tensor& logits, std::span<const std::int32_t> targets, double scale,
                                 std::span<double> nll);

/// logits[row, target] of every row.
std::vector<float> scores_of(const at::Tensor& logits, std::span<const std::int32_t> targets);

/// log Σ exp of every row: `[rows]`. `arg_max` (empty to skip): the first largest class of every row.
void log_sum_exp(const at::Tensor& logits, std::span<double> result, std::span<std::int64_t> arg_max = {});

/// KL(softmax of a row of `base` ‖ softmax of the same row of `other`), nats, never below 0; both log Σ exp are given.
void kl_divergence(const at::Tensor& base, std::span<const double> base_lse, const at::Tensor& other,
                   std::span<const double> other_lse, std::span<double> kl);

}  // namespace kvq
