#pragma once
// What errors of values do to the attention's output, from the weights alone: an error e of a value reaches it as w W_h
// e for a query head h that gives the token the softmax weight w, W_h being the columns of the output projection that
// belong to h. Softmax weights put aside, the squared change is eᵀMe with M = Σ over the query heads of W_hᵀ W_h.

#include <vector>

#include <ATen/core/Tensor.h>

namespace kvq {

/// `output [hidden, heads · head_dim]`: the output projection's matrix, any float type. Result fp64 `[kv_heads,
/// head_dim, head_dim]`, symmetric.
std::vector<double> value_metric(const at::Tensor& output, int kv_heads, int head_dim);

}  // namespace kvq
