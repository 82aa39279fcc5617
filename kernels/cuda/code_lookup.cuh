#pragma once
// From packed codes to fp16 numbers through tables in shared memory. A table row holds what an index stands for once
// per bank, so that 32 lanes look up 32 different indices without conflict: keys in the first 128 bytes of a row,
// values in the second.
//
//   bits   index                       row (per lane)                      instructions per two numbers
//   4      two codes, a byte           two halves                          PRMT, LDS
//   3      two codes, 6 bits           two halves                          SHF, LOP3, LDS
//   2      four codes, a byte          four halves, shared by two lanes    half of PRMT, LDS.64
//   8, 0   one code, a byte            one half, twice                     2 PRMT, 2 LDS, PRMT
//
// A row of codes holds 64 tokens of one channel in their natural order (kernels/layout). Lane (g, t) of a warp, g =
// lane / 4, t = lane % 4, works on the mma fragments of 4 tiles of 16 tokens. Tile m, row g + 8 r stands for token
//
//   16 (g / 2) + 4 m + 2 r + g % 2
//
// so that the quarter row of 16 tokens that belongs to g / 2 (keys) or t (values) is contiguous, and two neighbouring
// codes of a value row are one register of a fragment. For keys two rows (channels) are interleaved first.

#include <kvq/kernels/cuda/decode_plan.h>
#include <kvq/kernels/cuda/device_ops.cuh>

namespace kvq::cuda {

__device__ __forceinline__ constexpr int token_of(int g, int tile, int r) {
  return 16 * (g >> 1) + 4 * tile + 2 * r + (g & 1);
}

/// Where a token lies in a plane of per-token entries: the lanes of a fragment reach different banks. Steps of m and r
/// may be applied afterwards: swizzled(token_of(g, m, r)) = swizzled(token_of(g, 0, 0)) ^ (4 m + 2 r).
__device__ __forceinline__ int swizzled(int token) { return token ^ ((token >> 4) << 1); }

__device__ __forceinline__ std::uint32_t load_word(const char* row, std::uint32_t offset) {
  return *reinterpret_cast<const std::uint32_t*>(row + offset);
}

// Tables begin at a fixed address, so that a lookup needs no addition.
__device__ __forceinline__ std::uint32_t table_word(std::uint32_t offset) {
  std::uint32_t word;
  asm("ld.shared.b32 %0, [%1 + %2];" : "=r"(word) : "r"(offset), "n"(kTablesAt));
  return word;
}
__device__ __forceinline__ uint2 table_words(std::uint32_t offset) {
  uint2 words;
  asm("ld.shared.v2.b32 {%0, %1}, [%2 + %3];" : "=r"(words.x), "=r"(words.y) : "r"(offset), "n"(kTablesAt));
  return words;
}

/// Bits of x where the mask is 1, else of y. One LOP3.
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t x, std::uint32_t y, std::uint32_t mask) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(result) : "r"(x), "r"(mask), "r"(y));
  return result;
}

/// Byte `byte` of `index` times 256, plus `column`: the offset of a lane's table entry. One PRMT.
__device__ __forceinline__ std::uint32_t table_offset(std::uint32_t index, int byte, std::uint32_t column) {
  return __byte_perm(index, column, 0x7604 | (byte << 4));
}

/// Codes of one or two rows and their lookup. `quarter`: 0 … 3, 16 tokens of the row.
template <int kBits>
struct CodeLookup;

template <>
struct CodeLookup<4> {
  struct Index {
    std::uint32_t word[2];
  };
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Index value_index(const char* row, int quarter, int) {
    const uint2 codes = *reinterpret_cast<const uint2*>(row + quarter * 8);
    return {codes.x, codes.y};
  }
  static __device__ Index key_index(const char* row0, const char* row1, int g, int) {
    const uint2 a = *reinterpret_cast<const uint2*>(row0 + (g >> 1) * 8);
    const uint2 b = *reinterpret_cast<const uint2*>(row1 + (g >> 1) * 8);
    const int shift = (g & 1) * 4;
    const auto mix = [shift](std::uint32_t x, std::uint32_t y) {
      return select_bits(x >> shift, y << (4 - shift), 0x0f0f0f0fu);
    };
    return {mix(a.x, b.x), mix(a.y, b.y)};
  }
  /// Tile m: registers of r = 0 and r = 1.
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& r0,
                                 std::uint32_t& r1) {
    const std::uint32_t word = index.word[m >> 1];
    r0 = table_word(table_offset(word, 2 * (m & 1), column));
    r1 = table_word(table_offset(word, 2 * (m & 1) + 1, column));
  }
};

template <>
struct CodeLookup<2> {
  struct Index {
    std::uint32_t word;
  };
  static __device__ std::uint32_t column(int lane) { return (lane & 15) * 8; }
  static __device__ Index value_index(const char* row, int quarter, int) { return {load_word(row, quarter * 4)}; }
  static __device__ Index key_index(const char* row0, const char* row1, int g, int) {
    const std::uint32_t a = load_word(row0, (g >> 1) * 4), b = load_word(row1, (g >> 1) * 4);
    const int shift = (g & 1) * 2;
    return {select_bits(a >> shift, b << (2 - shift), 0x33333333u)};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& r0,
                                 std::uint32_t& r1) {
    const uint2 both = table_words(table_offset(index.word, m, column));
    r0 = both.x;
    r1 = both.y;
  }
};

template <>
struct CodeLookup<3> {
  struct Index {
    std::uint32_t word[2];  ///< four indices of 6 bits each
  };
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Index value_index(const char* row, int quarter, int) {
    // 6 bytes that begin at an even byte: two aligned words hold them.
    const std::uint32_t from = 6 * quarter & ~3;
    const std::uint32_t a = load_word(row, from), b = load_word(row, from + 4);
    const bool odd = quarter & 1;
    return {__byte_perm(a, b, odd ? 0x5432 : 0x3210), __byte_perm(a, b, odd ? 0x7765 : 0x6543)};
  }
  static __device__ Index key_index(const char* row0, const char* row1, int g, int) {
    const Index a = value_index(row0, g >> 1, 0), b = value_index(row1, g >> 1, 0);
    const int shift = (g & 1) * 3;
    const auto mix = [shift](std::uint32_t x, std::uint32_t y) {
      return select_bits(x >> shift, y << (3 - shift), 07070707u);
    };
    return {mix(a.word[0], b.word[0]), mix(a.word[1], b.word[1])};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& r0,
                                 std::uint32_t& r1) {
    const std::uint32_t word = index.word[m >> 1];
    const auto offset = [column](std::uint32_t x) { return (x & 0x3f00u) | column; };
    r0 = table_word(offset((m & 1) ? word >> 4 : word << 8));
    r1 = table_word(offset((m & 1) ? word >> 10 : word << 2));
  }
};

template <>
struct CodeLookup<8> {
  struct Index {
    std::uint32_t first[4], second[4];  ///< one code a byte: tiles' r = 0 low half, r = 1 high half
  };
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Index value_index(const char* row, int quarter, int) {
    const uint4 codes = *reinterpret_cast<const uint4*>(row + quarter * 16);
    return {{codes.x, codes.y, codes.z, codes.w}, {codes.x >> 8, codes.y >> 8, codes.z >> 8, codes.w >> 8}};
  }
  static __device__ Index key_index(const char* row0, const char* row1, int g, int) {
    const uint4 a = *reinterpret_cast<const uint4*>(row0 + (g >> 1) * 16);
    const uint4 b = *reinterpret_cast<const uint4*>(row1 + (g >> 1) * 16);
    const int shift = (g & 1) * 8;
    return {{a.x >> shift, a.y >> shift, a.z >> shift, a.w >> shift},
            {b.x >> shift, b.y >> shift, b.z >> shift, b.w >> shift}};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& r0,
                                 std::uint32_t& r1) {
    const auto one = [&](std::uint32_t word, int byte) { return table_word(table_offset(word, byte, column)); };
    r0 = __byte_perm(one(index.first[m], 0), one(index.second[m], 0), 0x5410);
    r1 = __byte_perm(one(index.first[m], 2), one(index.second[m], 2), 0x5410);
  }
};

/// Any width of 1 to 8 bits, known at run time: codes are cut out one by one into the form of 8 bits.
template <>
struct CodeLookup<0> : CodeLookup<8> {
  /// Codes of tokens first, first + 2, … first + 14 of a row in bytes 0 and 2 of four words.
  static __device__ void every_second(const char* row, int first, int bits, std::uint32_t (&words)[4]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      words[m] = code_at(row, first + 4 * m, bits) | code_at(row, first + 4 * m + 2, bits) << 16;
    }
  }
  static __device__ std::uint32_t code_at(const char* row, int token, int bits) {
    const int bit = token * bits;
    const auto* bytes = reinterpret_cast<const unsigned char*>(row) + (bit >> 3);
    // The byte behind the last code of a page is read too, and not used.
    const std::uint32_t window = bytes[0] | bytes[1] << 8;
    return (window >> (bit & 7)) & ((1u << bits) - 1u);
  }
  static __device__ Index value_index(const char* row, int quarter, int bits) {
    Index index;
    every_second(row, 16 * quarter, bits, index.first);
    every_second(row, 16 * quarter + 1, bits, index.second);
    return index;
  }
  static __device__ Index key_index(const char* row0, const char* row1, int g, int bits) {
    Index index;
    every_second(row0, 16 * (g >> 1) + (g & 1), bits, index.first);
    every_second(row1, 16 * (g >> 1) + (g & 1), bits, index.second);
    return index;
  }
};

/// Fills one side's half of the tables: warp `warp` of `warps` every so many rows.
template <int kBits>
__device__ void fill_table(char* tables, const float* decoded, int bits, int side, int warp, int warps, int lane) {
  char* row_entry = tables + side * 128 + lane * 4;
  if constexpr (kBits == 8 || kBits == 0) {
    const int mask = (1 << bits) - 1;
#pragma unroll 4
    for (int row = warp; row < table_rows(kBits); row += warps) {
      const float level = __ldg(decoded + (row & mask));
      *reinterpret_cast<std::uint32_t*>(row_entry + row * kTableRowBytes) = pack_halves(level, level);
    }
  } else {
    constexpr int kMask = (1 << kBits) - 1;
    const float level = __ldg(decoded + (lane & kMask));
    for (int row = warp; row < table_rows(kBits); row += warps) {
      // Lanes of 2-bit tables alternate between the two registers of an entry.
      const int index = kBits == 2 && (lane & 1) ? row >> 4 : row;
      const float low = __shfl_sync(~0u, level, index & kMask), high = __shfl_sync(~0u, level, index >> kBits & kMask);
      *reinterpret_cast<std::uint32_t*>(row_entry + row * kTableRowBytes) = pack_halves(low, high);
    }
  }
}

}  // namespace kvq::cuda
