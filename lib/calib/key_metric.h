#pragma once
// What errors of keys do to the attention's output, without a backward pass. An error e of the key of token t, before
// RoPE, changes the score of the query q at position p by (R_t e)·(R_p q) / sqrt(head_dim), so that the softmax weight
// w of the token changes by w(1 - w) times that, and the output by w(1 - w) times that and the distance between the
// token's value and the mean of the others. With this distance taken to be the same everywhere,
//   H = Σ over tokens, later queries and the query heads of a kv head of (w(1 - w))² u uᵀ,  u = R_tᵀ R_p q.
// A token costs head_dim² multiplications for each query that sees it, so H is taken over some tokens of a sequence.

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/core/kv_shape.h>
#include <kvq/model/rope.h>

namespace kvq {

/// Tokens of sequence number `sequence` that H is taken over, ascending: min(64, seqlen - 1) at a fixed stride, never
/// the first, which is a sink; where they begin differs from sequence to sequence. With n of them and
/// o = (sequence + 1) · 40503 mod 65536, token i is 1 + ⌊(65536 i + o)(seqlen - 1) / 65536 n⌋.
std::vector<std::int64_t> metric_tokens(std::int64_t sequence, std::int64_t seqlen);

/// H summed over `tokens`, fp64 `[kv_heads, head_dim, head_dim]`. `query [tokens, heads, head_dim]` and `key [tokens,
/// kv_heads, head_dim]` before RoPE, fp32, positions from 0; `log_sums` from attention_mass() in fp32. Queries whose
/// w(1 - w) is below 1/256 of the token's largest are left out; so are those that a `window` > 0 parts from the token.
/// The same result with any number of threads.
std::vector<double> key_metric(const at::Tensor& query, const at::Tensor& key, const RopeParams& params,
                               RopeTable& rope, std::int64_t window, std::span<const double> log_sums,
                               std::span<const std::int64_t> tokens);

}  // namespace kvq
