#pragma once
// From packed codes to fp16 numbers through tables in shared memory. A table row holds what an index stands for once
// per bank, so that 32 lanes look up 32 different indices without conflict: keys in the first 128 bytes of a row,
// values in the second.
//
//   bits   index                       row (per lane)                      instructions per two numbers
//   4      two codes, a byte           two halves                          PRMT, LDS
//   3      two codes, 6 bits           two halves                          SHF, LOP3, LDS
//   2      four codes, a byte          four halves, shared by two lanes    half of PRMT, LDS.64
//   8, 0,  one code, a byte            one half, twice                     2 PRMT, 2 LDS, PRMT
//   own rows
//
// A row of codes holds 64 tokens of one channel in their natural order (kernels/layout). Lane (g, t) of a warp, g =
// lane / 4, t = lane % 4, works on the mma fragments of 4 tiles of 16 tokens. The tokens of a fragment are chosen so
// that what a lane needs of a row is contiguous:
//
//   keys     rows are tokens: row g + 8 r of tile m is token 8 g + 2 m + r. Two rows of codes (channels) are
//   interleaved,
//            so that one index stands for two neighbours of a register.
//   values   columns are tokens: column 2 t + i + 8 b of tile m is token 16 t + 4 m + 2 b + i, and two neighbouring
//   codes
//            of a row are one register.

#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/cuda/decode_plan.h>
#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/kernels/cuda/device_ops.cuh>

namespace kvq::cuda {

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

/// Codes of rows and their lookup. Keys: `Pair`, 8 tokens of two rows as loaded, becomes `KeyIndex`, which gives the
/// registers x[2 m + r]. Values: `Index`, a quarter row, gives a tile's two registers.
template <int kBits>
struct CodeLookup;

template <>
struct CodeLookup<4> {
  struct Index {
    std::uint32_t word[2];
  };
  struct Pair {
    std::uint32_t x, y;
  };
  struct KeyIndex {
    std::uint32_t even, odd;  ///< tokens
  };
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Pair load_pair(const char* row0, const char* row1, int g, int) {
    return {load_word(row0, g * 4), load_word(row1, g * 4)};
  }
  static __device__ KeyIndex key_index(const Pair& pair) {
    return {select_bits(pair.x, pair.y << 4, 0x0f0f0f0fu), select_bits(pair.x >> 4, pair.y, 0x0f0f0f0fu)};
  }
  static __device__ void look_up_keys(const KeyIndex& index, std::uint32_t column, std::uint32_t (&x)[8]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      x[2 * m] = table_word(table_offset(index.even, m, column));
      x[2 * m + 1] = table_word(table_offset(index.odd, m, column));
    }
  }
  static __device__ Index value_index(const char* row, int quarter, int) {
    const uint2 codes = *reinterpret_cast<const uint2*>(row + quarter * 8);
    return {codes.x, codes.y};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& b0,
                                 std::uint32_t& b1) {
    const std::uint32_t word = index.word[m >> 1];
    b0 = table_word(table_offset(word, 2 * (m & 1), column));
    b1 = table_word(table_offset(word, 2 * (m & 1) + 1, column));
  }
};

template <>
struct CodeLookup<2> {
  struct Index {
    std::uint32_t word;
  };
  struct Pair {
    std::uint32_t x, y;  ///< 16 bits each
  };
  struct KeyIndex {
    std::uint32_t word;  ///< even tokens, then odd ones, two to a byte
  };
  static __device__ std::uint32_t column(int lane) { return (lane & 15) * 8; }
  static __device__ Pair load_pair(const char* row0, const char* row1, int g, int) {
    return {*reinterpret_cast<const std::uint16_t*>(row0 + g * 2),
            *reinterpret_cast<const std::uint16_t*>(row1 + g * 2)};
  }
  static __device__ KeyIndex key_index(const Pair& pair) {
    return {__byte_perm(select_bits(pair.x, pair.y << 2, 0x3333u), select_bits(pair.x >> 2, pair.y, 0x3333u), 0x5410)};
  }
  static __device__ void look_up_keys(const KeyIndex& index, std::uint32_t column, std::uint32_t (&x)[8]) {
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const uint2 both = table_words(table_offset(index.word, byte, column));
      x[4 * (byte & 1) + (byte >> 1)] = both.x;
      x[4 * (byte & 1) + 2 + (byte >> 1)] = both.y;
    }
  }
  static __device__ Index value_index(const char* row, int quarter, int) { return {load_word(row, quarter * 4)}; }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& b0,
                                 std::uint32_t& b1) {
    const uint2 both = table_words(table_offset(index.word, m, column));
    b0 = both.x;
    b1 = both.y;
  }
};

template <>
struct CodeLookup<3> {
  struct Index {
    std::uint32_t word[2];  ///< four indices of 6 bits each
  };
  struct Pair {
    std::uint32_t x, y;  ///< 24 bits each
  };
  struct KeyIndex {
    std::uint32_t even, odd;
  };
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Pair load_pair(const char* row0, const char* row1, int g, int) {
    // 3 bytes from byte 3 g on: two aligned words hold them. The last word of a row is not needed where it lies beyond.
    const std::uint32_t from = 3 * g & ~3, shift = (3 * g & 3) * 8;
    return {__funnelshift_r(load_word(row0, from), load_word(row0, from + 4), shift),
            __funnelshift_r(load_word(row1, from), load_word(row1, from + 4), shift)};
  }
  static __device__ KeyIndex key_index(const Pair& pair) {
    return {select_bits(pair.x, pair.y << 3, 07070707u), select_bits(pair.x >> 3, pair.y, 07070707u)};
  }
  static __device__ void look_up_keys(const KeyIndex& index, std::uint32_t column, std::uint32_t (&x)[8]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      x[2 * m] = table_word(offset(index.even, m, column));
      x[2 * m + 1] = table_word(offset(index.odd, m, column));
    }
  }
  static __device__ Index value_index(const char* row, int quarter, int) {
    // 6 bytes that begin at an even byte: two aligned words hold them.
    const std::uint32_t from = 6 * quarter & ~3;
    const std::uint32_t a = load_word(row, from), b = load_word(row, from + 4);
    const bool odd = quarter & 1;
    return {__byte_perm(a, b, odd ? 0x5432 : 0x3210), __byte_perm(a, b, odd ? 0x7765 : 0x6543)};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& b0,
                                 std::uint32_t& b1) {
    b0 = table_word(offset(index.word[m >> 1], 2 * (m & 1), column));
    b1 = table_word(offset(index.word[m >> 1], 2 * (m & 1) + 1, column));
  }

 private:
  /// Six bits from 6 * place on, times 256, plus the column.
  static __device__ std::uint32_t offset(std::uint32_t word, int place, std::uint32_t column) {
    const std::uint32_t moved = place == 0 ? word << 8 : place == 1 ? word << 2 : place == 2 ? word >> 4 : word >> 10;
    return (moved & 0x3f00u) | column;
  }
};

template <>
struct CodeLookup<8> {
  struct Index {
    std::uint32_t first[4], second[4];  ///< one code a byte: tiles' b = 0 low half, b = 1 high half
  };
  struct Pair {
    uint2 x, y;
  };
  using KeyIndex = Pair;
  static __device__ std::uint32_t column(int lane) { return lane * 4; }
  static __device__ Pair load_pair(const char* row0, const char* row1, int g, int) {
    return {*reinterpret_cast<const uint2*>(row0 + g * 8), *reinterpret_cast<const uint2*>(row1 + g * 8)};
  }
  static __device__ KeyIndex key_index(const Pair& pair) { return pair; }
  static __device__ void look_up_keys(const KeyIndex& index, std::uint32_t column, std::uint32_t (&x)[8]) {
#pragma unroll
    for (int token = 0; token < 8; ++token) {
      const std::uint32_t a = token < 4 ? index.x.x : index.x.y, b = token < 4 ? index.y.x : index.y.y;
      x[token] = __byte_perm(one(a, token & 3, column), one(b, token & 3, column), 0x5410);
    }
  }
  static __device__ Index value_index(const char* row, int quarter, int) {
    const uint4 codes = *reinterpret_cast<const uint4*>(row + quarter * 16);
    return {{codes.x, codes.y, codes.z, codes.w}, {codes.x >> 8, codes.y >> 8, codes.z >> 8, codes.w >> 8}};
  }
  static __device__ void look_up(const Index& index, int m, std::uint32_t column, std::uint32_t& b0,
                                 std::uint32_t& b1) {
    b0 = __byte_perm(one(index.first[m], 0, column), one(index.second[m], 0, column), 0x5410);
    b1 = __byte_perm(one(index.first[m], 2, column), one(index.second[m], 2, column), 0x5410);
  }

 private:
  static __device__ std::uint32_t one(std::uint32_t word, int byte, std::uint32_t column) {
    return table_word(table_offset(word, byte, column));
  }
};

/// Any width of 1 to 8 bits, known at run time: codes are cut out one by one into the form of 8 bits.
template <>
struct CodeLookup<0> : CodeLookup<8> {
  static __device__ std::uint32_t code_at(const char* row, int token, int bits) {
    const int bit = token * bits;
    const auto* bytes = reinterpret_cast<const unsigned char*>(row) + (bit >> 3);
    // The byte behind the last code of a page is read too, and not used.
    const std::uint32_t window = bytes[0] | bytes[1] << 8;
    return (window >> (bit & 7)) & ((1u << bits) - 1u);
  }
  static __device__ Pair load_pair(const char* row0, const char* row1, int g, int bits) {
    const auto four = [bits](const char* row, int token) {
      return code_at(row, token, bits) | code_at(row, token + 1, bits) << 8 | code_at(row, token + 2, bits) << 16 |
             code_at(row, token + 3, bits) << 24;
    };
    return {{four(row0, 8 * g), four(row0, 8 * g + 4)}, {four(row1, 8 * g), four(row1, 8 * g + 4)}};
  }
  static __device__ Index value_index(const char* row, int quarter, int bits) {
    Index index;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = 16 * quarter + 4 * m;
      index.first[m] = code_at(row, token, bits) | code_at(row, token + 2, bits) << 16;
      index.second[m] = code_at(row, token + 1, bits) | code_at(row, token + 3, bits) << 16;
    }
    return index;
  }
};

/// Rows of widths or levels of their own: bytes of codes again, to which a row of keys adds where its codebook begins.
template <>
struct CodeLookup<kOwnRows> : CodeLookup<8> {
  /// 32 bits from any bit on; `codes` aligned to 4. `shift`: bytes before the codes, any number.
  static __device__ std::uint32_t window(const char* codes, int bit) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(codes) + (bit >> 5);
    return __funnelshift_r(words[0], words[1], bit & 31);
  }
  /// Four codes of `bits` bits each, a byte each.
  static __device__ std::uint32_t four(std::uint32_t codes, int bits) {
    const std::uint32_t mask = (1u << bits) - 1u;
    return (codes & mask) | (codes >> bits & mask) << 8 | (codes >> (2 * bits) & mask) << 16 |
           (codes >> (3 * bits) & mask) << 24;
  }
  static __device__ uint2 key_row(const char* codes, int shift, RowInfo row, int g) {
    const int bits = row.bits(), bit = 8 * (shift + row.offset() + g * bits);
    const std::uint32_t base = static_cast<std::uint32_t>(row.first_level()) * 0x01010101u;
    const auto* words = reinterpret_cast<const std::uint32_t*>(codes) + (bit >> 5);
    const std::uint32_t low = __funnelshift_r(words[0], words[1], bit & 31);
    const std::uint32_t high = __funnelshift_r(words[1], words[2], bit & 31);
    return {four(low, bits) + base, four(__funnelshift_rc(low, high, 4 * bits), bits) + base};
  }
  static __device__ Pair load_pair(const char* codes, int shift, RowInfo row0, RowInfo row1, int g) {
    return {key_row(codes, shift, row0, g), key_row(codes, shift, row1, g)};
  }

  /// A quarter of a row of values, all of `bits`.
  static __device__ Index value_index(const char* codes, int shift, int channel, int quarter, int bits) {
    Index index;
    const int first = 8 * shift + (channel * layout::kPageTokens + 16 * quarter) * bits;
#pragma unroll
    for (int m = 0; m < 4; ++m) split(index, m, four(window(codes, first + 4 * m * bits), bits));
    return index;
  }
  /// The same of three codes together: six such groups hold a quarter and up to two codes before it.
  static __device__ Index level_index(const char* codes, int shift, int channel, int quarter, const LevelRows& rows) {
    const int row = 8 * shift + channel * rows.row_bits, first = 16 * quarter / 3, skipped = quarter % 3;
    std::uint32_t three[6];
#pragma unroll
    for (int k = 0; k < 6; ++k) {
      const int group = first + k, bits = group == 21 ? rows.single_bits : rows.group_bits;
      const std::uint32_t whole = window(codes, row + group * rows.group_bits) & ((1u << bits) - 1u);
      const std::uint32_t rest = whole * rows.divide >> 16, last = rest * rows.divide >> 16;
      three[k] = (whole - rest * rows.levels) | (rest - last * rows.levels) << 8 | last << 16;
    }
    const std::uint32_t bytes[5] = {three[0] | three[1] << 24, three[1] >> 8 | three[2] << 16,
                                    three[2] >> 16 | three[3] << 8, three[4] | three[5] << 24, three[5] >> 8};
    Index index;
#pragma unroll
    for (int m = 0; m < 4; ++m) split(index, m, __funnelshift_r(bytes[m], bytes[m + 1], 8 * skipped));
    return index;
  }

  /// Numbers of a quarter of a row, two to a register, through the table of what three codes stand for. At most 60
  /// bits.
  static __device__ void look_up_levels(const char* codes, int shift, int channel, int quarter, int lane,
                                        const LevelRows& rows, std::uint32_t (&numbers)[8]) {
    const int first = 16 * quarter / 3, skipped = quarter % 3, gap = rows.group_bits;
    const int bit = 8 * shift + channel * rows.row_bits + first * gap;
    const auto* words = reinterpret_cast<const std::uint32_t*>(codes) + (bit >> 5);
    const std::uint32_t low = __funnelshift_r(words[0], words[1], bit & 31);
    const std::uint32_t high = __funnelshift_r(words[1], words[2], bit & 31);
    const std::uint64_t all = low | static_cast<std::uint64_t>(high) << 32;
    const std::uint32_t mask = (1u << gap) - 1u, last_mask = quarter == 3 ? (1u << rows.single_bits) - 1u : mask;
    const std::uint32_t column = triple_column(lane, rows);
    uint2 three[6];
#pragma unroll
    for (int k = 0; k < 6; ++k) {
      const std::uint32_t whole = static_cast<std::uint32_t>(all >> (k * gap)) & (k == 5 ? last_mask : mask);
      three[k] = table_words(rows.side_by_side() == 1 ? (whole << 8) + column
                                                      : (whole >> 2 << 8) + ((whole & 3u) << 3) + column);
    }
    std::uint32_t pairs[9];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const uint2 a = three[2 * k], b = three[2 * k + 1];
      pairs[3 * k] = a.x, pairs[3 * k + 1] = __byte_perm(a.y, b.x, 0x5410);
      pairs[3 * k + 2] = __byte_perm(b.x, b.y, 0x5432);
    }
    const std::uint32_t select = skipped == 0 ? 0x3210u : skipped == 1 ? 0x5432u : 0x7654u;
#pragma unroll
    for (int i = 0; i < 8; ++i) numbers[i] = __byte_perm(pairs[i], pairs[i + 1], select);
  }
  /// Where a lane finds entry 0: lanes that read at once have their own, or share them with three others.
  static __device__ std::uint32_t triple_column(int lane, const LevelRows& rows) {
    return 128u + (rows.side_by_side() == 1 ? (lane & 15) * 8u : (lane & 3) * 32u);
  }
  /// Fills the table: warp `warp` of `warps` every so many rows.
  static __device__ void fill_triples(char* tables, const float* decoded, const LevelRows& rows, int warp, int warps,
                                      int lane) {
    if (lane >= 16) return;
    const int levels = rows.levels, count = levels * levels * levels, each = rows.side_by_side();
    for (int row = warp; row * each < 1 << rows.group_bits; row += warps) {
      const int entry = min(row * each + lane % each, count - 1);
      const float a = __ldg(decoded + entry % levels), b = __ldg(decoded + entry / levels % levels);
      const float c = __ldg(decoded + entry / (levels * levels));
      *reinterpret_cast<uint2*>(tables + row * kTableRowBytes + 128 + lane * 8) = {pack_halves(a, b),
                                                                                   pack_halves(c, c)};
    }
  }

 private:
  static __device__ void split(Index& index, int m, std::uint32_t four_codes) {
    index.first[m] = four_codes & 0x00ff00ffu, index.second[m] = four_codes >> 8 & 0x00ff00ffu;
  }
};

/// Fills one side's half of the tables: warp `warp` of `warps` every so many rows.
template <int kBits>
__device__ void fill_table(char* tables, const float* decoded, int bits, int side, int warp, int warps, int lane) {
  char* row_entry = tables + side * 128 + lane * 4;
  if constexpr (kBits == 8 || kBits == 0 || kBits == kOwnRows) {
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
