#include <kvq/formats/dequantize.h>

#include <kvq/core/error.h>
#include <kvq/formats/dequantize_blocks.h>

namespace kvq {
namespace blocks {
namespace {

void decode_f16(const std::uint8_t* in, std::size_t values, float* out) {
  for (std::size_t index = 0; index < values; ++index) out[index] = load_half(in + 2 * index);
}

void decode_bf16(const std::uint8_t* in, std::size_t values, float* out) {
  for (std::size_t index = 0; index < values; ++index) out[index] = bfloat16_to_float(load_u16(in + 2 * index));
}

// Blocks of 32 values. Byte i of the sixteen holds value i in its low and value i + 16 in its high nibble.

void decode_q4_0(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 18, out += 32) {
    const float scale = load_half(in);
    const std::uint8_t* codes = in + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((codes[i] & 15) - 8);
      out[i + 16] = scale * static_cast<float>((codes[i] >> 4) - 8);
    }
  }
}

void decode_q4_1(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 20, out += 32) {
    const float scale = load_half(in);
    const float low = load_half(in + 2);
    const std::uint8_t* codes = in + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(codes[i] & 15) + low;
      out[i + 16] = scale * static_cast<float>(codes[i] >> 4) + low;
    }
  }
}

// The fifth bits are one 32-bit word, bit i for value i.

std::uint32_t load_u32(const std::uint8_t* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void decode_q5_0(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 22, out += 32) {
    const float scale = load_half(in);
    const std::uint32_t high = load_u32(in + 2);
    const std::uint8_t* codes = in + 6;
    for (int i = 0; i < 16; ++i) {
      const auto low_code = static_cast<int>((codes[i] & 15u) | ((high >> i) & 1u) << 4);
      const auto high_code = static_cast<int>((codes[i] >> 4) | ((high >> (i + 16)) & 1u) << 4);
      out[i] = scale * static_cast<float>(low_code - 16);
      out[i + 16] = scale * static_cast<float>(high_code - 16);
    }
  }
}

void decode_q5_1(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 24, out += 32) {
    const float scale = load_half(in);
    const float low = load_half(in + 2);
    const std::uint32_t high = load_u32(in + 4);
    const std::uint8_t* codes = in + 8;
    for (int i = 0; i < 16; ++i) {
      const auto low_code = static_cast<int>((codes[i] & 15u) | ((high >> i) & 1u) << 4);
      const auto high_code = static_cast<int>((codes[i] >> 4) | ((high >> (i + 16)) & 1u) << 4);
      out[i] = scale * static_cast<float>(low_code) + low;
      out[i + 16] = scale * static_cast<float>(high_code) + low;
    }
  }
}

void decode_q8_0(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 34, out += 32) {
    const float scale = load_half(in);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<std::int8_t>(in[2 + i]));
  }
}

// ggml's non-uniform 4-bit grid.
constexpr float kIq4NlGrid[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void decode_iq4_nl(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 18, out += 32) {
    const float scale = load_half(in);
    const std::uint8_t* codes = in + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * kIq4NlGrid[codes[i] & 15];
      out[i + 16] = scale * kIq4NlGrid[codes[i] >> 4];
    }
  }
}

}  // namespace
}  // namespace blocks

void dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> out) {
  const GgmlTypeTraits* traits = ggml_type_traits(static_cast<std::uint32_t>(type));
  KVQ_ASSERT(traits != nullptr);
  const auto block_values = static_cast<std::size_t>(traits->block_values);
  KVQ_ASSERT(out.size() % block_values == 0);
  const std::size_t blocks = out.size() / block_values;
  KVQ_ASSERT(bytes.size() == blocks * static_cast<std::size_t>(traits->block_bytes));
  if (out.empty()) return;
  const auto* in = reinterpret_cast<const std::uint8_t*>(bytes.data());
  switch (type) {
    case GgmlType::F32:
      std::memcpy(out.data(), in, bytes.size());
      return;
    case GgmlType::F16:
      return blocks::decode_f16(in, blocks, out.data());
    case GgmlType::BF16:
      return blocks::decode_bf16(in, blocks, out.data());
    case GgmlType::Q4_0:
      return blocks::decode_q4_0(in, blocks, out.data());
    case GgmlType::Q4_1:
      return blocks::decode_q4_1(in, blocks, out.data());
    case GgmlType::Q5_0:
      return blocks::decode_q5_0(in, blocks, out.data());
    case GgmlType::Q5_1:
      return blocks::decode_q5_1(in, blocks, out.data());
    case GgmlType::Q8_0:
      return blocks::decode_q8_0(in, blocks, out.data());
    case GgmlType::IQ4_NL:
      return blocks::decode_iq4_nl(in, blocks, out.data());
    case GgmlType::Q2_K:
      return blocks::decode_q2_k(in, blocks, out.data());
    case GgmlType::Q3_K:
      return blocks::decode_q3_k(in, blocks, out.data());
    case GgmlType::Q4_K:
      return blocks::decode_q4_k(in, blocks, out.data());
    case GgmlType::Q5_K:
      return blocks::decode_q5_k(in, blocks, out.data());
    case GgmlType::Q6_K:
      return blocks::decode_q6_k(in, blocks, out.data());
  }
}

}  // namespace kvq
