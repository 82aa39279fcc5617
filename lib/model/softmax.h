#pragma once
// Cross-entropy of rows of logits, in one or two passes over each row while it is in the cache. Sums are taken in
// double: an fp32 log-softmax over 49152 classes is off by 5e-6, always to the same side, which shifts every gradient.

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace kvq {

/// nll[row] = log Σ exp(logits[row]) − logits[row, target]; `[rows, vocab]` fp32, contiguous, CPU.
void cross_entropy(const at::Tensor& logits, std::span<const std::int32_t> targets, std::span<double> nll);

/// The same, and overwrites the logits with scale · d nll / d logits = scale · (softmax − one-hot).
void cross_entropy_with_gradient(const at::Tensor& logits, std::span<const std::int32_t> targets, double scale,
                                 std::span<double> nll);

/// log Σ exp of every row: `[rows]`.
void log_sum_exp(const at::Tensor& logits, std::span<double> result);

}  // namespace kvq
