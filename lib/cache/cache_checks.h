#pragma once
// What all caches check of their input, with the same words.

#include <cstdint>

#include <kvq/core/kv_shape.h>
#include <kvq/core/side.h>
#include <kvq/model/attention_backend.h>
#include <kvq/quant/encoder.h>

namespace kvq {

/// Throws Mismatch for tensors of another shape than the quantizer's, Numeric for NaN and infinity.
void check_input(const AttentionInput& input, const KvShape& shape);

/// Throws Numeric: which value does not fit. `first_token`: position of the first token of the call that threw.
[[noreturn]] void fail_overflow(int layer, Side side, std::int64_t first_token, int head_dim,
                                const ExactOverflow& overflow);

}  // namespace kvq
