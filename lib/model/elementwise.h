#pragma once
// What stands between the matrix products of a block. fp32 in and out, differentiable.

#include <ATen/core/Tensor.h>

namespace kvq {

/// Root mean square norm over the last dimension: x / sqrt(mean(x²) + eps) · weight; `[tokens, width]`, weight `[width]`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// SwiGLU: silu(gate) · up of `[tokens, 2 · width]` = (gate, up) -> `[tokens, width]`.
at::Tensor silu_times(const at::Tensor& gate_up);

}  // namespace kvq
