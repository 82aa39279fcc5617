#include <kvq/model/internal/tensor_ops.h>

#include <algorithm>
#include <vector>

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/isfinite.h>

namespace kvq::tensor_ops {

namespace {

/// Over the last dimension, which stays.
at::Tensor sum_of_rows(const at::Tensor& x) { return x.sum(at::IntArrayRef({-1}), true, at::kDouble); }

/// Gate and up halves of `[tokens, 2 · width]`.
struct Halves {
  explicit Halves(const at::Tensor& gate_up)
      : gate(gate_up.narrow(1, 0, gate_up.size(1) / 2)),
        up(gate_up.narrow(1, gate_up.size(1) / 2, gate_up.size(1) / 2)) {}
  at::Tensor gate, up;
};

/// s of act(x) = x · s: sigmoid(x), or of GELU sigmoid(2 t), t = √(2/π) (x + 0.044715 x³).
at::Tensor share(const at::Tensor& x, bool gelu) {
  return gelu ? x.square().mul(0.0713548162726009).add(1.59576912160573071).mul(x).sigmoid_() : x.sigmoid();
}

template <typename T>
at::Tensor row_numbers(std::span<const T> numbers, at::ScalarType type, const at::Tensor& like) {
  const at::Tensor host = at::from_blob(const_cast<T*>(numbers.data()), {static_cast<std::int64_t>(numbers.size()), 1},
                                        at::TensorOptions().dtype(type));
  return host.to(like.device(), false, true);
}

at::Tensor target_column(std::span<const std::int32_t> targets, const at::Tensor& logits) {
  return row_numbers(targets, at::kInt, logits).to(at::kLong);
}

void to_host(const at::Tensor& column, std::span<double> out) {
  const at::Tensor host = column.to(at::TensorOptions().device(at::kCPU).dtype(at::kDouble)).contiguous();
  std::copy_n(host.const_data_ptr<double>(), out.size(), out.begin());
}

}  // namespace

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor inverse =
      sum_of_rows(x.square()).div_(static_cast<double>(x.size(1))).add_(eps).rsqrt_().to(at::kFloat);
  return {x.mul(inverse).mul_(weight), inverse.squeeze(1)};
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& inverse) {
  const at::Tensor r = inverse.unsqueeze(1), above = grad.mul(weight);
  // y = w x r, r = (mean x² + eps)^-1/2:  dx = r w g − x r³ Σ(g w x) / width.
  const at::Tensor dot = sum_of_rows(above.mul(x)).mul_(r.to(at::kDouble).pow_(3)).div_(static_cast<double>(x.size(1)));
  return above.mul(r).sub_(x.mul(dot.to(at::kFloat)));
}

at::Tensor gated(const at::Tensor& gate_up, bool gelu) {
  const Halves in(gate_up);
  return share(in.gate, gelu).mul_(in.gate).mul_(in.up);
}

at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, bool gelu) {
  const Halves in(gate_up);
  const at::Tensor s = share(in.gate, gelu);
  // d (x s) / dx = s (1 + x (1 − s) slope), slope = d 2t / dx of GELU, else 1.
  at::Tensor slope = s.neg().add_(1.0).mul_(in.gate);
  if (gelu) slope.mul_(in.gate.square().mul_(0.2140644488178027).add_(1.59576912160573071));
  const at::Tensor gate_grad = slope.add_(1.0).mul_(s).mul_(in.up).mul_(grad);
  return at::cat({gate_grad, s.mul(in.gate).mul_(grad)}, 1);
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, double sign) {
  const at::Tensor in = x.to(at::kFloat);
  const std::int64_t pairs = cosine.size(1), width = in.size(2);
  const at::Tensor a = in.narrow(2, 0, pairs), b = in.narrow(2, pairs, pairs), c = cosine.unsqueeze(1),
                   s = sine.unsqueeze(1).mul(sign);
  return at::cat({a.mul(c).sub_(b.mul(s)), b.mul(c).add_(a.mul(s)), in.narrow(2, 2 * pairs, width - 2 * pairs)}, 2)
      .to(x.scalar_type());
}

bool all_finite(const at::Tensor& x) { return at::isfinite(x).all().item<bool>(); }

void log_sum_exp(const at::Tensor& logits, std::span<double> result, std::span<std::int64_t> arg_max) {
  const at::Tensor largest = logits.amax({1}, true);
  to_host(sum_of_rows(logits.sub(largest).exp_()).log_().add_(largest), result);
  if (arg_max.empty()) return;
  const at::Tensor first = at::argmax(logits, 1).to(at::kCPU);
  std::copy_n(first.const_data_ptr<std::int64_t>(), arg_max.size(), arg_max.begin());
}

void cross_entropy_with_gradient(const at::Tensor& logits, std::span<const std::int32_t> targets, double scale,
                                 std::span<double> nll) {
  const at::Tensor column = target_column(targets, logits), chosen = at::gather(logits, 1, column);
  const at::Tensor largest = logits.amax({1}, true);
  at::Tensor scores = logits;  // its memory
  scores.sub_(largest).exp_();
  const at::Tensor sum = sum_of_rows(scores);
  to_host(sum.log().add_(largest).sub_(chosen), nll);
  scores.mul_(sum.reciprocal().mul_(scale).to(at::kFloat));
  scores.scatter_(1, column, at::gather(scores, 1, column).sub_(scale));
}

void kl_divergence(const at::Tensor& base, std::span<const double> base_lse, const at::Tensor& other,
                   std::span<const double> other_lse, std::span<double> kl) {
  std::vector<float> offset, shift;
  for (std::size_t row = 0; row < kl.size(); ++row) {
    offset.push_back(static_cast<float>(base_lse[row]));
    shift.push_back(static_cast<float>(base_lse[row] - other_lse[row]));
  }
  const at::Tensor offsets = row_numbers(std::span<const float>(offset), at::kFloat, base),
                   shifts = row_numbers(std::span<const float>(shift), at::kFloat, base);
  to_host(sum_of_rows(base.sub(offsets).exp_().mul_(base.sub(other).sub_(shifts))).clamp_min_(0.0), kl);
}

at::Tensor picked(const at::Tensor& logits, std::span<const std::int32_t> targets) {
  return at::gather(logits, 1, target_column(targets, logits)).to(at::kCPU);
}

}  // namespace kvq::tensor_ops
