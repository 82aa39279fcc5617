#pragma once
// What the loops written by hand for the CPU compute (elementwise.h, softmax.h, numeric_check.h), by libtorch's
// operations: for tensors of other devices. fp32; sums in double. Who chooses: cpu_loops.h.

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace kvq::tensor_ops {

struct Normed {
  at::Tensor result;
  at::Tensor inverse;  ///< `[rows]`: 1 / sqrt(mean(x²) + eps)
};
Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
/// Gradient with respect to x.
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& inverse);

at::Tensor gated(const at::Tensor& gate_up, bool gelu);
at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, bool gelu);

/// Rotation by the angles, or back with `sign` = −1.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, double sign);

bool all_finite(const at::Tensor& x);

void log_sum_exp(const at::Tensor& logits, std::span<double> result, std::span<std::int64_t> arg_max);
void cross_entropy_with_gradient(const at::Tensor& logits, std::span<const std::int32_t> targets, double scale,
                                 std::span<double> nll);
void kl_divergence(const at::Tensor& base, std::span<const double> base_lse, const at::Tensor& other,
                   std::span<const double> other_lse, std::span<double> kl);
/// logits[row, target] of every row, on the CPU.
at::Tensor picked(const at::Tensor& logits, std::span<const std::int32_t> targets);

}  // namespace kvq::tensor_ops
