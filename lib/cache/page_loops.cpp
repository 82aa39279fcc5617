#include <kvq/cache/page_loops.h>

#include <cstring>

#include <kvq/core/half.h>
#include <kvq/kernels/layout/grouped_codes.h>

// As in lib/quant/encode_loops.cpp: GCC only. Loops that the compiler vectorises by itself would look codes up with
// gathers; a table of 16 entries fits into one or two registers instead, which takes intrinsics (pshufb, vpermps). Each
// instruction set has an adaptor `Simd` of the same few operations, and the loops are written once for all.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVQ_SIMD_LEVELS 1
#include <immintrin.h>
// Intrinsics that leave lanes undefined on purpose are taken for uses of uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace kvq {

namespace {

constexpr int kTokens = 64;

/// Where the codes of consecutive lanes lie in the 16 bytes that hold them: lane i has bits i * kBits and up.
template <int kBits, int kLanes>
struct CodePlaces {
  alignas(64) std::uint8_t bytes[4 * kLanes];  ///< for a byte shuffle within 16 bytes: two bytes a lane, then zeros
  alignas(64) std::int32_t shifts[kLanes];

  constexpr CodePlaces() : bytes{}, shifts{} {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int first = lane * kBits / 8;
      bytes[4 * lane] = static_cast<std::uint8_t>(first);
      bytes[4 * lane + 1] = static_cast<std::uint8_t>(first + 1);
      bytes[4 * lane + 2] = bytes[4 * lane + 3] = 0x80;
      shifts[lane] = lane * kBits % 8;
    }
  }
};
template <int kBits, int kLanes>
constexpr CodePlaces<kBits, kLanes> kCodePlaces{};

/// The codes of a row, one a byte: with those of whole vectors of groups, and what vector loads may read.
constexpr int kUnpackedRoom = 96;

/// Three codes from their group: divisions by the number of levels and by its square as a product and a shift.
template <int kLevels>
struct GroupDigits {
  static constexpr int kBits = layout::group_bits(kLevels), kShift = 22;
  static constexpr std::uint32_t kSquare = kLevels * kLevels;
  static constexpr std::uint32_t kOverLevels = (1u << kShift) / kLevels + 1, kOverSquare = (1u << kShift) / kSquare + 1;
  static constexpr bool exact() {
    for (std::uint32_t group = 0; group < 1u << kBits; ++group) {
      const std::uint32_t third = group * kOverSquare >> kShift, rest = group - third * kSquare;
      if (third != group / kSquare || rest * kOverLevels >> kShift != rest / kLevels) return false;
    }
    return true;
  }
  static_assert(exact());
};

/// Where 8 groups of kBits bits lie in 16 bytes, as CodePlaces, three bytes a lane.
template <int kBits>
struct GroupPlaces {
  alignas(32) std::uint8_t bytes[32];
  alignas(32) std::int32_t shifts[8];

  constexpr GroupPlaces() : bytes{}, shifts{} {
    for (int lane = 0; lane < 8; ++lane) {
      for (int byte = 0; byte < 3; ++byte) bytes[4 * lane + byte] = static_cast<std::uint8_t>(lane * kBits / 8 + byte);
      bytes[4 * lane + 3] = 0x80;
      shifts[lane] = lane * kBits % 8;
    }
  }
};
template <int kBits>
constexpr GroupPlaces<kBits> kGroupPlaces{};

namespace portable {

struct Simd {
  static constexpr int kLanes = 4, kRows = 2, kVectors = 2;
  struct Floats {
    float lane[kLanes];
  };
  struct Codes {
    int lane[kLanes];
  };

  template <typename Operation>
  static Floats each(Operation operation) {
    Floats result;
    for (int lane = 0; lane < kLanes; ++lane) result.lane[lane] = operation(lane);
    return result;
  }
  static Floats load(const float* from) {
    return each([&](int lane) { return from[lane]; });
  }
  static void store(float* to, const Floats& x) { std::memcpy(to, x.lane, sizeof x.lane); }
  static Floats all(float x) {
    return each([&](int) { return x; });
  }
  static Floats add(const Floats& a, const Floats& b) {
    return each([&](int lane) { return a.lane[lane] + b.lane[lane]; });
  }
  static Floats multiply(const Floats& a, const Floats& b) {
    return each([&](int lane) { return a.lane[lane] * b.lane[lane]; });
  }
  static Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int lane) { return a.lane[lane] * b.lane[lane] + c.lane[lane]; });
  }
  static Floats negative_multiply_add(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int lane) { return c.lane[lane] - a.lane[lane] * b.lane[lane]; });
  }
  static float sum(const Floats& x) { return (x.lane[0] + x.lane[1]) + (x.lane[2] + x.lane[3]); }

  template <int kBits>
  static Codes codes(const std::uint8_t* row, int vector) {
    Codes result;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int bit = (vector * kLanes + lane) * kBits;
      const int two = row[bit / 8] | row[bit / 8 + 1] << 8;
      result.lane[lane] = two >> (bit % 8) & ((1 << kBits) - 1);
    }
    return result;
  }
  /// Codes of the groups of a row that begins at the first bit of `row`.
  template <int kLevels>
  static void unpack_groups(const std::uint8_t* row, std::uint8_t* codes) {
    using Digits = GroupDigits<kLevels>;
    for (int group = 0; group < kTokens / layout::kGroupCodes; ++group, codes += layout::kGroupCodes) {
      std::uint32_t bits;
      std::memcpy(&bits, row + group * Digits::kBits / 8, sizeof bits);
      bits = bits >> (group * Digits::kBits % 8) & ((1u << Digits::kBits) - 1);
      const std::uint32_t third = bits * Digits::kOverSquare >> Digits::kShift, rest = bits - third * Digits::kSquare;
      const std::uint32_t second = rest * Digits::kOverLevels >> Digits::kShift;
      codes[0] = static_cast<std::uint8_t>(rest - second * kLevels);
      codes[1] = static_cast<std::uint8_t>(second);
      codes[2] = static_cast<std::uint8_t>(third);
    }
  }
  template <int kBits>
  struct Table {
    static constexpr bool kInRegisters = false;
    const float* entries;
    explicit Table(const float* from) : entries(from) {}
    void normalise(float, float) {}
    Floats at(const Codes& codes) const {
      return each([&](int lane) { return entries[codes.lane[lane]]; });
    }
  };
};

#include "page_loops_body.h"
}  // namespace portable

#ifdef KVQ_SIMD_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {

struct Simd {
  static constexpr int kLanes = 8, kRows = 3, kVectors = 4;
  using Floats = __m256;
  using Codes = __m256i;

  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Codes whole(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats negative_multiply_add(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
  static float sum(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  /// Above the code stand bits of the next ones, which Table ignores.
  template <int kBits>
  static Codes codes(const std::uint8_t* row, int vector) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + vector * kBits));
    const auto& places = kCodePlaces<kBits, kLanes>;
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes),
                                              _mm256_load_si256(reinterpret_cast<const __m256i*>(places.bytes)));
    return _mm256_srlv_epi32(pairs, _mm256_load_si256(reinterpret_cast<const __m256i*>(places.shifts)));
  }
  /// As the portable one, 8 groups at once; their 24 codes are stored as two times 12 bytes, 16 wide.
  template <int kLevels>
  static void unpack_groups(const std::uint8_t* row, std::uint8_t* codes) {
    using Digits = GroupDigits<kLevels>;
    const auto& places = kGroupPlaces<Digits::kBits>;
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -128, -128, -128, -128));
    for (int vector = 0; vector < 3; ++vector, row += Digits::kBits, codes += 24) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
      const __m256i lanes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes),
                                                _mm256_load_si256(reinterpret_cast<const __m256i*>(places.bytes)));
      const __m256i bits =
          _mm256_and_si256(_mm256_srlv_epi32(lanes, _mm256_load_si256(reinterpret_cast<const __m256i*>(places.shifts))),
                           whole((1u << Digits::kBits) - 1));
      const __m256i third = _mm256_srli_epi32(_mm256_mullo_epi32(bits, whole(Digits::kOverSquare)), Digits::kShift);
      const __m256i rest = _mm256_sub_epi32(bits, _mm256_mullo_epi32(third, whole(Digits::kSquare)));
      const __m256i second = _mm256_srli_epi32(_mm256_mullo_epi32(rest, whole(Digits::kOverLevels)), Digits::kShift);
      const __m256i first = _mm256_sub_epi32(rest, _mm256_mullo_epi32(second, whole(kLevels)));
      const __m256i three =
          _mm256_or_si256(first, _mm256_or_si256(_mm256_slli_epi32(second, 8), _mm256_slli_epi32(third, 16)));
      const __m256i dense = _mm256_shuffle_epi8(three, order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm256_castsi256_si128(dense));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 12), _mm256_extracti128_si256(dense, 1));
    }
  }
  /// Up to 3 bits: a permutation looks at the lowest 3 bits of a lane. 4 bits: two of them, and the fourth bit chooses.
  template <int kBits>
  struct Table {
    static constexpr bool kInRegisters = kBits <= 4;
    const float* entries;
    Floats low, high;
    explicit Table(const float* from) : entries(from), low(load(from)), high(load(from + 8)) {}
    void normalise(float zero, float scale) {
      low = add(all(zero), multiply(all(scale), low));
      high = add(all(zero), multiply(all(scale), high));
    }
    Floats at(Codes codes) const {
      if constexpr (kBits <= 3) {
        return _mm256_permutevar8x32_ps(low, codes);
      } else if constexpr (kBits == 4) {
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes),
                                _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
      } else {
        return _mm256_i32gather_ps(entries, _mm256_and_si256(codes, _mm256_set1_epi32((1 << kBits) - 1)), 4);
      }
    }
  };
};

#include "page_loops_body.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace avx512 {

struct Simd {
  static constexpr int kLanes = 16, kRows = 6, kVectors = 4;
  using Floats = __m512;
  using Codes = __m512i;

  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats negative_multiply_add(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
  static float sum(Floats x) {
    alignas(64) float lane[kLanes];
    _mm512_store_ps(lane, x);
    float result = 0.0f;
    for (int index = 0; index < kLanes; ++index) result += lane[index];
    return result;
  }

  template <int kBits>
  static Codes codes(const std::uint8_t* row, int vector) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + vector * 2 * kBits));
    const auto& places = kCodePlaces<kBits, kLanes>;
    const __m512i pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), _mm512_load_si512(places.bytes));
    return _mm512_srlv_epi32(pairs, _mm512_load_si512(places.shifts));
  }
  template <int kLevels>
  static void unpack_groups(const std::uint8_t* row, std::uint8_t* codes) {
    avx2::Simd::unpack_groups<kLevels>(row, codes);
  }
  /// Up to 4 bits in one register, whose permutation looks at the lowest 4 bits of a lane; 5 bits in two.
  template <int kBits>
  struct Table {
    static constexpr bool kInRegisters = kBits <= 5;
    const float* entries;
    Floats low, high;
    explicit Table(const float* from) : entries(from), low(load(from)), high(load(kBits == 5 ? from + 16 : from)) {}
    void normalise(float zero, float scale) {
      low = add(all(zero), multiply(all(scale), low));
      if (kBits == 5) high = add(all(zero), multiply(all(scale), high));
    }
    Floats at(Codes codes) const {
      if constexpr (kBits <= 4) {
        return _mm512_permutexvar_ps(codes, low);
      } else if constexpr (kBits == 5) {
        return _mm512_permutex2var_ps(low, codes, high);
      } else {
        return _mm512_i32gather_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << kBits) - 1)), entries, 4);
      }
    }
  };
};

#include "page_loops_body.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

const PageLoops& page_loops(SimdLevel level) {
  switch (level) {
#ifdef KVQ_SIMD_LEVELS
    case SimdLevel::Avx512:
      return avx512::kLoops;
    case SimdLevel::Avx2:  // all that have AVX2 have FMA, but for emulators that are told otherwise
      return __builtin_cpu_supports("fma") ? avx2::kLoops : portable::kLoops;
#endif
    default:
      return portable::kLoops;
  }
}

}  // namespace kvq
