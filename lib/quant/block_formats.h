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

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

/// Throws Usage for heads that blocks cannot cut.
void check_block_width(CodebookKind kind, int head_dim);

/// Codes of one token, `x`: `[width]`, a multiple of 32 for q4_0 and q8_0, and the fp16 scales of its blocks, `[width /
/// 32]`, none for fp8. A q8_0 code is that of ggml plus 128. False when a scale does not fit fp16.
bool encode_blocks(CodebookKind kind, std::span<const float> x, std::uint8_t* codes, std::uint16_t* scales);

/// What each code stands for: times the scale of its block, but for fp8. `[2^bits]`; 0 where no code is.
const std::vector<float>& block_levels(CodebookKind kind);

/// Encodes and decodes one token in place, as above.
bool block_round_trip(CodebookKind kind, std::span<float> x);

/// Largest magnitude of a block whose scale fits fp16.
float largest_of_block(CodebookKind kind);

float round_to_e4m3(float x);

}  // namespace kvq
