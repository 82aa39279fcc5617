#pragma once
// Fixed formats that others keep their caches in, value by value what their own code gives back.
//
//   q4_0  blocks of 32 channels: d = m / -8 with m the value of largest magnitude (the first of equal ones), stored as
//         fp16; code = min(15, trunc(x / d + 8.5)) with d before it is rounded; x = (code - 8) * fp16(d). ggml: 18
//         bytes
//   q8_0  blocks of 32: d = max|x| / 127 as fp16; code = round(x / d), halves away from 0; x = code * fp16(d). 34 bytes
//   fp8   e4m3fn, round to nearest even, magnitudes above 448 become 448 (as vLLM's cache with scale 1). 1 byte a value
//
// x / d is x * (1 / d) in fp32, as ggml computes it. A block of zeros stays one.

#include <span>

#include <kvq/quant/recipe.h>

namespace kvq {

/// Encodes and decodes one token, `x`: `[width]`, in place; width a multiple of 32 for q4_0 and q8_0. False when the
/// scale of a block does not fit fp16 (`x` is then of no use).
bool block_round_trip(CodebookKind kind, std::span<float> x);

float round_to_e4m3(float x);

}  // namespace kvq
