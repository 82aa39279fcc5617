#pragma once
// Attention over a cache whose newest tokens are still exact and are quantized later: each query sees what the cache
// held when it was asked. One pass over many queries gives what a token-by-token decode loop gives.

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <kvq/quant/recipe_traits.h>

namespace kvq {

/// Keys or values of one layer, in both forms. `[tokens, kv_heads, head_dim]`, one dtype, one device.
struct SettlingTokens {
  ExactWindow window;
  at::Tensor settled;            ///< tokens 0 … window.settled(length) as they are from then on
  at::Tensor exact;              ///< tokens first_exact … length as they were before; for a window that waits only
  std::int64_t first_exact = 0;  ///< at most window.settled(first_position + 1)
};

/// Causal attention of rotated queries `[tokens, heads, head_dim]` at `first_position` …; the query at p sees token t
/// settled if t < window.settled(p + 1), exact otherwise, of keys and of values by their own windows. Sums are fp32;
/// the result has the dtype of the queries. `window` > 0: a query sees its own token and the window - 1 before it.
/// Memory: a block of queries against all keys, about 64 MiB.
at::Tensor settling_attention(const at::Tensor& query, const SettlingTokens& keys, const SettlingTokens& values,
                              std::int64_t first_position, std::int64_t window = 0);

}  // namespace kvq
