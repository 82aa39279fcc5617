#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <kvq/cache/kv_cache.h>
#include <kvq/core/kv_shape.h>
#include <kvq/core/rng.h>

namespace kvq::test {

/// Even in ±`query_size`, keys and values in ±1, of tokens from position 0 on.
inline AttentionInput random_attention(int layer, std::int64_t tokens, const KvShape& shape, float query_size,
                                       Rng& rng) {
  const auto tensor = [&](int heads, float size) {
    at::Tensor x = at::empty({tokens, heads, shape.head_dim}, at::TensorOptions().dtype(at::kFloat));
    float* data = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = size * static_cast<float>(2.0 * rng.uniform() - 1.0);
    return x;
  };
  // One after the other: the order of a braced list is defined.
  return {layer, 0, tensor(shape.heads, query_size), tensor(shape.kv_heads, 1.0f), tensor(shape.kv_heads, 1.0f)};
}

}  // namespace kvq::test
