#pragma once
// Decoders of single block formats; `dequantize` chooses among them. `in` holds `blocks` blocks, `out` blocks ·
// block_values. Products and sums are written in the order of ggml's reference, so that results are bit-equal to it.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <kvq/core/half.h>

namespace kvq::blocks {

inline std::uint16_t load_u16(const std::uint8_t* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline float load_half(const std::uint8_t* at) { return half_to_float(load_u16(at)); }

void decode_q2_k(const std::uint8_t* in, std::size_t blocks, float* out);
void decode_q3_k(const std::uint8_t* in, std::size_t blocks, float* out);
void decode_q4_k(const std::uint8_t* in, std::size_t blocks, float* out);
void decode_q5_k(const std::uint8_t* in, std::size_t blocks, float* out);
void decode_q6_k(const std::uint8_t* in, std::size_t blocks, float* out);

}  // namespace kvq::blocks
