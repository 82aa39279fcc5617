#pragma once
// How much attention each token receives: its softmax weight (causal, after RoPE, scores scaled by 1/sqrt(head_dim)),
// summed over all queries and query heads. The first tokens of a sequence receive most of it (attention sinks).

#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/rope.h>

namespace kvq {

/// `query [tokens, heads, head_dim]` and `key [tokens, kv_heads, head_dim]`, both before RoPE, fp32, positions from 0,
/// on any device. Result `[tokens]`; its sum is tokens * heads. Blocks of queries, never [heads, tokens, tokens] in
/// memory. The same result with any number of threads. `bf16`: scores are products of bf16 operands, as in a bf16
/// model. `window` > 0: a query sees its own token and the window - 1 before it. `log_sums`, if given, becomes log Σ
/// exp(score) of every query over the keys it sees, `[kv_heads, tokens, group]`: what turns a score into a softmax
/// weight.
std::vector<float> attention_mass(const at::Tensor& query, const at::Tensor& key, RopeTable& rope, bool bf16,
                                  std::int64_t window = 0, std::vector<double>* log_sums = nullptr);

}  // namespace kvq
