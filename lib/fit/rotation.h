#pragma once
// Rotary position embedding of calibration tensors, plainly: angles, sines and products in double. Keys k and their
// gradients turn alike: with k' = R k and R orthogonal, dL/dk' = R dL/dk.

#include <cstdint>
#include <span>

#include <kvq/core/kv_shape.h>

namespace kvq {

/// Rotates `x`, `[sequences * seqlen, kv_heads, head_dim]`, in place; a token's position is its place in its sequence.
void rotate_tokens(std::span<float> x, const KvShape& shape, const RopeParams& rope, std::int64_t seqlen, int threads);

}  // namespace kvq
