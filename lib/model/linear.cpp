#include <kvq/model/linear.h>

#include <ATen/ops/linear.h>

namespace kvq {

namespace {

bool cpu_multiplies_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

at::Tensor rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

}  // namespace

LinearMode linear_mode(Dtype dtype, Device device) {
  if (dtype == Dtype::Fp32) return LinearMode::Fp32;
  return device != Device::Cpu || cpu_multiplies_bf16() ? LinearMode::Bf16 : LinearMode::Bf16Rounded;
}

at::Tensor attention_operand(const at::Tensor& x, bool bf16) {
  if (!bf16) return x;
  return !x.is_cpu() || cpu_multiplies_bf16() ? x.to(at::kBFloat16) : rounded(x);
}

at::ScalarType weight_type(LinearMode mode) { return mode == LinearMode::Bf16 ? at::kBFloat16 : at::kFloat; }

at::Tensor linear(LinearMode mode, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (mode == LinearMode::Fp32) return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
  const at::Tensor product = mode == LinearMode::Bf16 ? at::linear(x.to(at::kBFloat16), weight).to(at::kFloat)
                                                      : rounded(at::linear(rounded(x), weight));
  return bias.defined() ? product.add(bias) : product;
}

}  // namespace kvq
