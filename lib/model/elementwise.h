#pragma once
// What stands between the matrix products of a block; on the CPU each in one pass over memory. fp32, differentiable
// with respect to the first argument; the graph keeps that argument and no intermediate result.

#include <ATen/core/Tensor.h>

#include <kvq/model/config.h>

namespace kvq {

/// Root mean square norm over the last dimension: x / sqrt(mean(x²) + eps) · weight; `[tokens, width]`, weight
/// `[width]`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// act(gate) · up of `[tokens, 2 · width]` = (gate, up) -> `[tokens, width]`.
at::Tensor gated(Activation activation, const at::Tensor& gate_up);

/// Rotates channels (j, j + pairs) of `[tokens, heads, head_dim]` by the angles of cosine and sine `[tokens, pairs]`;
/// channels from 2 · pairs on pass. Any strides but the last; the result is contiguous.
at::Tensor rotate_pairs(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);

}  // namespace kvq
