// No include guard: page_loops.cpp includes this once per instruction set, each time in a namespace of its own that has
// an adaptor `Simd`.

using Floats = Simd::Floats;
constexpr int kLanes = Simd::kLanes;
constexpr int kTokenVectors = kTokens / kLanes;

template <int kBits>
inline void decode_channels_of(const std::uint8_t* codes, int rows, const float* entries, const float* zero,
                               const float* scale, float* out) {
  const typename Simd::template Table<kBits> table(entries);
  for (int row = 0; row < rows; ++row, codes += 8 * kBits, out += kTokens) {
    auto of_row = table;
    of_row.normalise(zero[row], scale[row]);
    for (int vector = 0; vector < kTokenVectors; ++vector) {
      Floats x = of_row.at(Simd::template codes<kBits>(codes, vector));
      if constexpr (!decltype(table)::kInRegisters) {
        x = Simd::add(Simd::all(zero[row]), Simd::multiply(Simd::all(scale[row]), x));
      }
      Simd::store(out + vector * kLanes, x);
    }
  }
}

template <int kBits>
inline void decode_tokens_of(const std::uint8_t* codes, int rows, const float* entries, const float* zero,
                             const float* scale, float* out) {
  const typename Simd::template Table<kBits> table(entries);
  for (int row = 0; row < rows; ++row, codes += 8 * kBits, out += kTokens) {
    for (int vector = 0; vector < kTokenVectors; ++vector) {
      const Floats x = table.at(Simd::template codes<kBits>(codes, vector));
      Simd::store(out + vector * kLanes, Simd::add(Simd::load(zero + vector * kLanes),
                                                   Simd::multiply(Simd::load(scale + vector * kLanes), x)));
    }
  }
}

#define KVQ_FOR_BITS(function, ...)    \
  switch (bits) {                      \
    case 1:                            \
      return function<1>(__VA_ARGS__); \
    case 2:                            \
      return function<2>(__VA_ARGS__); \
    case 3:                            \
      return function<3>(__VA_ARGS__); \
    case 4:                            \
      return function<4>(__VA_ARGS__); \
    case 5:                            \
      return function<5>(__VA_ARGS__); \
    case 6:                            \
      return function<6>(__VA_ARGS__); \
    case 7:                            \
      return function<7>(__VA_ARGS__); \
    default:                           \
      return function<8>(__VA_ARGS__); \
  }

inline void decode_channels(const std::uint8_t* codes, int rows, int bits, const float* table, const float* zero,
                            const float* scale, float* out) {
  KVQ_FOR_BITS(decode_channels_of, codes, rows, table, zero, scale, out)
}

inline void decode_tokens(const std::uint8_t* codes, int rows, int bits, const float* table, const float* zero,
                          const float* scale, float* out) {
  KVQ_FOR_BITS(decode_tokens_of, codes, rows, table, zero, scale, out)
}
#undef KVQ_FOR_BITS

/// The 64 codes of a row that begins at bit `first`, one a byte.
template <int kLevels>
inline void unpack_row(const std::uint8_t* codes, std::int64_t first, std::uint8_t* unpacked) {
  constexpr int kRowBits = static_cast<int>(layout::grouped_row_bits(kLevels, kTokens)), kWords = (kRowBits + 63) / 64;
  constexpr int kTail = kTokens / layout::kGroupCodes * layout::group_bits(kLevels);
  std::uint64_t words[kWords + 3];  // the row from bit 0 on, and what vector loads may read
  std::memcpy(words, codes + first / 8, 8 * (kWords + 1));
  if (const int shift = static_cast<int>(first % 8); shift != 0) {
    for (int word = 0; word < kWords; ++word) words[word] = words[word] >> shift | words[word + 1] << (64 - shift);
  }
  Simd::template unpack_groups<kLevels>(reinterpret_cast<const std::uint8_t*>(words), unpacked);
  constexpr int kBits = layout::bits_for(kLevels);
  static_assert(kTokens % layout::kGroupCodes == 1 && kTail % 64 + kBits <= 64);
  unpacked[kTokens - 1] = static_cast<std::uint8_t>(words[kTail / 64] >> (kTail % 64) & ((1u << kBits) - 1));
}

template <int kLevels>
inline void decode_grouped_of(const std::uint8_t* codes, int rows, bool by_token, const float* entries,
                              const float* zero, const float* scale, float* out) {
  const typename Simd::template Table<(kLevels <= 16 ? 4 : 5)> table(entries);
  std::uint8_t unpacked[kUnpackedRoom];
  for (int row = 0; row < rows; ++row, out += kTokens) {
    unpack_row<kLevels>(codes, row * layout::grouped_row_bits(kLevels, kTokens), unpacked);
    for (int vector = 0; vector < kTokenVectors; ++vector) {
      const Floats x = table.at(Simd::template codes<8>(unpacked, vector));
      const int token = vector * kLanes;
      Simd::store(out + token, by_token
                                   ? Simd::add(Simd::load(zero + token), Simd::multiply(Simd::load(scale + token), x))
                                   : Simd::add(Simd::all(zero[row]), Simd::multiply(Simd::all(scale[row]), x)));
    }
  }
}

inline void decode_grouped(const std::uint8_t* codes, int rows, int levels, bool by_token, const float* table,
                           const float* zero, const float* scale, float* out) {
  switch (levels) {
    case 3:
      return decode_grouped_of<3>(codes, rows, by_token, table, zero, scale, out);
    case 5:
      return decode_grouped_of<5>(codes, rows, by_token, table, zero, scale, out);
    case 10:
      return decode_grouped_of<10>(codes, rows, by_token, table, zero, scale, out);
    default:
      return decode_grouped_of<20>(codes, rows, by_token, table, zero, scale, out);
  }
}

inline void halves_to_floats(const std::uint8_t* from, int count, float factor, float* out) {
  for (int index = 0; index < count; ++index) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * index, sizeof half);
    out[index] = half_to_float(half) * factor;
  }
}

inline void rotate_rows(float* block, int pairs, const float* cosine, const float* sine) {
  float* first = block;
  float* second = block + pairs * kTokens;
  for (int at = 0; at < pairs * kTokens; at += kLanes) {
    const Floats a = Simd::load(first + at), b = Simd::load(second + at);
    const Floats c = Simd::load(cosine + at), s = Simd::load(sine + at);
    Simd::store(first + at, Simd::negative_multiply_add(b, s, Simd::multiply(a, c)));
    Simd::store(second + at, Simd::multiply_add(a, s, Simd::multiply(b, c)));
  }
}

inline void rotate_vectors(const float* x, int rows, int head_dim, int pairs, const float* cosine, const float* sine,
                           float* out) {
  for (int row = 0; row < rows; ++row, x += head_dim, out += head_dim) {
    for (int pair = 0; pair < pairs; ++pair) {
      const float a = x[pair], b = x[pair + pairs];
      out[pair] = a * cosine[pair] - b * sine[pair];
      out[pair + pairs] = b * cosine[pair] + a * sine[pair];
    }
    for (int channel = 2 * pairs; channel < head_dim; ++channel) out[channel] = x[channel];
  }
}

/// kRows x kVectors vectors of the product, kept in registers.
// Unrolled by request: only then does the compiler keep the sums in registers.
template <int kRows, int kVectors>
inline void multiply_tile(const float* a, int a_stride, int depth, const float* b, int b_stride, float* c, int c_stride,
                          bool add) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = add ? Simd::load(c + row * c_stride + vector * kLanes) : Simd::all(0.0f);
    }
  }
  for (int k = 0; k < depth; ++k) {
    Floats right[kVectors];
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) right[vector] = Simd::load(b + vector * kLanes);
    b += b_stride;
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Floats left = Simd::all(a[row * a_stride + k]);
#pragma GCC unroll 8
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[row][vector] = Simd::multiply_add(left, right[vector], sums[row][vector]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      Simd::store(c + row * c_stride + vector * kLanes, sums[row][vector]);
    }
  }
}

/// All rows of kVectors vectors of columns: tiles of kRows rows, then a smaller one.
template <int kRows, int kVectors>
inline void multiply_columns(const float* a, int a_stride, int rows, int depth, const float* b, int b_stride, float* c,
                             int c_stride, bool add) {
  for (; rows >= kRows; rows -= kRows, a += kRows * a_stride, c += kRows * c_stride) {
    multiply_tile<kRows, kVectors>(a, a_stride, depth, b, b_stride, c, c_stride, add);
  }
  if constexpr (kRows > 1) {
    if (rows > 0) multiply_columns<kRows - 1, kVectors>(a, a_stride, rows, depth, b, b_stride, c, c_stride, add);
  }
}

inline void multiply(const float* a, int a_stride, int rows, int depth, const float* b, int b_stride, int columns,
                     float* c, int c_stride, bool add) {
  int column = 0;
  for (; column + Simd::kVectors * kLanes <= columns; column += Simd::kVectors * kLanes) {
    multiply_columns<Simd::kRows, Simd::kVectors>(a, a_stride, rows, depth, b + column, b_stride, c + column, c_stride,
                                                  add);
  }
  for (; column < columns; column += kLanes) {
    multiply_columns<Simd::kRows, 1>(a, a_stride, rows, depth, b + column, b_stride, c + column, c_stride, add);
  }
}

template <int kRows>
inline void add_weighted_of(const float* weights, const float* block, int head_dim, float* sums) {
  for (int channel = 0; channel < head_dim; ++channel, block += kTokens, sums += kRows * kLanes) {
    Floats sum[kRows];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) sum[row] = Simd::load(sums + row * kLanes);
    for (int vector = 0; vector < kTokenVectors; ++vector) {
      const Floats x = Simd::load(block + vector * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        sum[row] = Simd::multiply_add(Simd::load(weights + row * kTokens + vector * kLanes), x, sum[row]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) Simd::store(sums + row * kLanes, sum[row]);
  }
}

inline void add_weighted(const float* weights, int rows, const float* block, int head_dim, float* sums) {
  switch (rows) {
    case 1:
      return add_weighted_of<1>(weights, block, head_dim, sums);
    case 2:
      return add_weighted_of<2>(weights, block, head_dim, sums);
    case 3:
      return add_weighted_of<3>(weights, block, head_dim, sums);
    case 4:
      return add_weighted_of<4>(weights, block, head_dim, sums);
    case 5:
      return add_weighted_of<5>(weights, block, head_dim, sums);
    case 6:
      return add_weighted_of<6>(weights, block, head_dim, sums);
    case 7:
      return add_weighted_of<7>(weights, block, head_dim, sums);
    default:
      return add_weighted_of<8>(weights, block, head_dim, sums);
  }
}

inline void sum_lanes(const float* sums, int rows, int head_dim, float* out, int out_stride) {
  for (int channel = 0; channel < head_dim; ++channel) {
    for (int row = 0; row < rows; ++row) {
      out[row * out_stride + channel] = Simd::sum(Simd::load(sums + (channel * rows + row) * kLanes));
    }
  }
}

inline void transpose(const float* block, int head_dim, float* out, int out_stride) {
  for (int channel = 0; channel < head_dim; ++channel) {
    for (int token = 0; token < kTokens; ++token) out[token * out_stride + channel] = block[channel * kTokens + token];
  }
}

inline void scale_all(float* x, std::int64_t count, float factor) {
  for (std::int64_t index = 0; index < count; ++index) x[index] *= factor;
}

inline constexpr PageLoops kLoops = {kLanes,           decode_channels, decode_tokens,  decode_grouped,
                                     halves_to_floats, rotate_rows,     rotate_vectors, multiply,
                                     add_weighted,     sum_lanes,       transpose,      scale_all};
