#pragma once
// GGML block formats to fp32.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvq {

enum class GgmlType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  BF16 = 30,
};

struct GgmlTypeTraits {
  const char* name;
  std::int64_t block_values;  ///< values per block
  std::int64_t block_bytes;
};

/// nullptr for a type that is not supported.
const GgmlTypeTraits* ggml_type_traits(std::uint32_t type);

/// `out.size()` is a multiple of block_values; `bytes` holds exactly that many blocks.
void dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace kvq
