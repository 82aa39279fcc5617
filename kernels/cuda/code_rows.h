#pragma once
// Rows of codes that are not all alike, as the kernels are told of them: of widths of their own (widths=pair), or of
// 3, 5, 10 or 20 levels, three codes together (kernels/layout/grouped_codes.h). Where there are such rows on either
// side of a layer, each codebook of the layer is padded to kRowLevels numbers, those of several widths one behind the
// other.

#include <cstdint>

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

}  // namespace kvq::cuda

#undef KVQ_HOST_DEVICE
