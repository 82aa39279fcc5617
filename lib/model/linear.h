#pragma once
// Matrix products with frozen weights, in the precision that was asked for and that the device can do well.

#include <ATen/core/Tensor.h>

#include <kvq/model/model.h>

namespace kvq {

/// How products are computed.
enum class LinearMode {
  Fp32,
  Bf16,         ///< bf16 operands, products summed in fp32 by the processor's own instructions
  Bf16Rounded,  ///< CPU without bf16 instructions: operands rounded to bf16, kept and multiplied as fp32. The same
                ///< numbers (sums apart) without the library's scalar fallback, which is five times slower than fp32.
};
LinearMode linear_mode(Dtype dtype, Device device = Device::Cpu);

/// A rotated query or key, or a value, as attention multiplies it: itself, or rounded to bf16, in a type that its
/// device multiplies well. Differentiable.
at::Tensor attention_operand(const at::Tensor& x, bool bf16);

/// What a weight is stored as.
at::ScalarType weight_type(LinearMode mode);

/// x · weightᵀ + bias: `[tokens, in]` fp32 × `[out, in]` -> `[tokens, out]` fp32. `bias` may be undefined (fp32).
/// Gradients flow to x.
at::Tensor linear(LinearMode mode, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kvq
