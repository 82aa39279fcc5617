// The K formats of ggml: blocks of 256 values in groups of 16 or 32, whose scales are themselves quantized.

#include <kvq/formats/dequantize_blocks.h>

namespace kvq::blocks {
namespace {

constexpr int kValues = 256;

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the low 6 bits of bytes 0–3 (4–7) are scales (minima) 0–3; of
/// the others the low (high) nibbles of bytes 8–11 are the low four bits, and the top two bits of bytes 0–3 (4–7) the
/// rest.
struct ScalesAndMinima {
  int scale[8];
  int minimum[8];
};

ScalesAndMinima unpack_scales(const std::uint8_t* packed) {
  ScalesAndMinima out{};
  for (int i = 0; i < 4; ++i) {
    out.scale[i] = packed[i] & 63;
    out.minimum[i] = packed[4 + i] & 63;
    out.scale[4 + i] = (packed[8 + i] & 15) | ((packed[i] >> 2) & 0x30);
    out.minimum[4 + i] = (packed[8 + i] >> 4) | ((packed[4 + i] >> 2) & 0x30);
  }
  return out;
}

}  // namespace

// Q2_K and Q3_K: 2-bit codes, 64 bytes. Bytes 0–31 hold values 0–127, bytes 32–63 the rest: value 32·s + i of a half is
// in byte i at bit 2·s.

void decode_q2_k(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 84, out += kValues) {
    const std::uint8_t* scales = in;
    const float scale_of_scales = load_half(in + 80);
    const float scale_of_minima = load_half(in + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = scale_of_scales * static_cast<float>(scales[group] & 15);
      const float minimum = scale_of_minima * static_cast<float>(scales[group] >> 4);
      const std::uint8_t* codes = in + 16 + 32 * (group / 8) + 16 * (group % 2);
      const int shift = 2 * (group % 8 / 2);
      for (int i = 0; i < 16; ++i) {
        out[16 * group + i] = scale * static_cast<float>((codes[i] >> shift) & 3) - minimum;
      }
    }
  }
}

// Q3_K's third bit is in 32 bytes of masks: bit (value / 32) of byte (value % 32); a zero bit means minus four.
// Its sixteen 6-bit scales: low nibbles in bytes 0–7 (scales 8–15 in the high nibbles), two high bits in bytes 8–11.

void decode_q3_k(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 110, out += kValues) {
    const std::uint8_t* masks = in;
    const std::uint8_t* packed = in + 96;
    const float scale_of_scales = load_half(in + 108);
    for (int group = 0; group < 16; ++group) {
      const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
      const int high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
      const float scale = scale_of_scales * static_cast<float>((low | high << 4) - 32);
      const int column = 16 * (group % 2);
      const std::uint8_t* codes = in + 32 + 32 * (group / 8) + column;
      const int shift = 2 * (group % 8 / 2);
      const int mask_bit = group / 2;
      for (int i = 0; i < 16; ++i) {
        const int third = (masks[column + i] >> mask_bit) & 1;
        out[16 * group + i] = scale * static_cast<float>(((codes[i] >> shift) & 3) - 4 * (1 - third));
      }
    }
  }
}

// Q4_K and Q5_K: 4-bit codes, 32 bytes for 64 values: low nibbles first, then the high ones. Groups of 32.

void decode_q4_k(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 144, out += kValues) {
    const float scale_of_scales = load_half(in);
    const float scale_of_minima = load_half(in + 2);
    const ScalesAndMinima table = unpack_scales(in + 4);
    for (int group = 0; group < 8; ++group) {
      const float scale = scale_of_scales * static_cast<float>(table.scale[group]);
      const float minimum = scale_of_minima * static_cast<float>(table.minimum[group]);
      const std::uint8_t* codes = in + 16 + 32 * (group / 2);
      const int shift = 4 * (group % 2);
      for (int i = 0; i < 32; ++i) {
        out[32 * group + i] = scale * static_cast<float>((codes[i] >> shift) & 15) - minimum;
      }
    }
  }
}

// The fifth bit of value 32·group + i is bit `group` of byte i of 32.

void decode_q5_k(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 176, out += kValues) {
    const float scale_of_scales = load_half(in);
    const float scale_of_minima = load_half(in + 2);
    const ScalesAndMinima table = unpack_scales(in + 4);
    const std::uint8_t* fifth = in + 16;
    for (int group = 0; group < 8; ++group) {
      const float scale = scale_of_scales * static_cast<float>(table.scale[group]);
      const float minimum = scale_of_minima * static_cast<float>(table.minimum[group]);
      const std::uint8_t* codes = in + 48 + 32 * (group / 2);
      const int shift = 4 * (group % 2);
      for (int i = 0; i < 32; ++i) {
        const int code = ((codes[i] >> shift) & 15) | ((fifth[i] >> group) & 1) << 4;
        out[32 * group + i] = scale * static_cast<float>(code) - minimum;
      }
    }
  }
}

// Q6_K, per half of 128 values in runs of 32: low nibbles of 64 bytes hold runs 0 and 1, high nibbles runs 2 and 3; two
// more bits of run r at bit 2·r of 32 bytes. Groups of 16 with signed 8-bit scales.

void decode_q6_k(const std::uint8_t* in, std::size_t blocks, float* out) {
  for (std::size_t block = 0; block < blocks; ++block, in += 210, out += kValues) {
    const float scale_of_scales = load_half(in + 208);
    for (int group = 0; group < 16; ++group) {
      const float scale = scale_of_scales * static_cast<float>(static_cast<std::int8_t>(in[192 + group]));
      const int half = group / 8;
      const int run = group % 8 / 2;
      const int column = 16 * (group % 2);
      const std::uint8_t* low = in + 64 * half + 32 * (run % 2) + column;
      const std::uint8_t* high = in + 128 + 32 * half + column;
      const int low_shift = 4 * (run / 2);
      const int high_shift = 2 * run;
      for (int i = 0; i < 16; ++i) {
        const int code = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
        out[16 * group + i] = scale * static_cast<float>(code - 32);
      }
    }
  }
}

}  // namespace kvq::blocks
