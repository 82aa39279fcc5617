#pragma once
// Rows of codes that are not all alike, as the kernels are told of them: of widths of their own (widths=pair), or of
// 3, 5, 10 or 20 levels, three codes together (kernels/layout/grouped_codes.h). Where there are such rows on either
// side of a layer, each codebook of the layer is padded to kRowLevels numbers, those of several widths one behind the
// other.

#include <cstdint>

#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/kernels/layout/packed_layout.h>

#ifdef __CUDACC__
#define KVQ_HOST_DEVICE __host__ __device__
#else
#define KVQ_HOST_DEVICE
#endif

namespace kvq::cuda {

inline constexpr int kRowLevels = 256;

/// One row: byte offset from the start of the kv head's codes (unused with levels), bits of a code, and where its
/// codebook begins in the padded one.
struct RowInfo {
  std::uint32_t packed = 0;

  static constexpr RowInfo of(int offset, int bits, int first_level) {
    return {static_cast<std::uint32_t>(offset) | static_cast<std::uint32_t>(bits) << 16 |
            static_cast<std::uint32_t>(first_level) << 24};
  }
  KVQ_HOST_DEVICE constexpr int offset() const { return static_cast<int>(packed & 0xffffu); }
  KVQ_HOST_DEVICE constexpr int bits() const { return static_cast<int>(packed >> 16 & 0xffu); }
  KVQ_HOST_DEVICE constexpr int first_level() const { return static_cast<int>(packed >> 24); }
};

/// Rows of three codes together, in numbers that a kernel does not have to find.
struct LevelRows {
  std::int32_t levels = 0;       ///< 0: none
  std::int32_t group_bits = 0;   ///< of three codes
  std::int32_t single_bits = 0;  ///< of the last slot's code
  std::int32_t row_bits = 0;
  std::uint32_t divide = 0;  ///< x * divide >> 16 is x / levels for all that three codes are

  static constexpr LevelRows of(int levels) {
    if (levels == 0) return {};
    return {levels, layout::group_bits(levels), layout::bits_for(levels),
            static_cast<std::int32_t>(layout::grouped_row_bits(levels, layout::kPageTokens)),
            static_cast<std::uint32_t>((65536 + levels - 1) / levels)};
  }
  /// Whether what three codes stand for has a place in a table of its own, beside that of keys.
  KVQ_HOST_DEVICE constexpr bool has_triples() const { return levels > 0 && levels <= 10; }
  /// Entries of 8 bytes that stand side by side in a row of that table; as often for lanes apart as there is room.
  KVQ_HOST_DEVICE constexpr int side_by_side() const { return levels <= 5 ? 1 : 4; }
};

}  // namespace kvq::cuda

#undef KVQ_HOST_DEVICE
