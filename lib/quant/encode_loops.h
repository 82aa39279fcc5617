#pragma once
// The inner loops of the encoder over the channels of one token. Clear loops that the compiler vectorises, compiled for
// several instruction sets and chosen at run time; none may contract or reorder floating-point operations, so that
// every level gives the same bits (tests/quant/encode_loops_test.cpp).

#include <cstdint>

#include <kvq/core/simd_level.h>

namespace kvq {

/// Pointers do not overlap unless said. `count` channels.
struct EncodeLoops {
  /// x_hat = (x - zero) * inverse, zero and inverse per channel.
  void (*normalise_channels)(const float* x, const float* zero, const float* inverse, int count, float* x_hat);
  void (*normalise_token)(const float* x, float zero, float inverse, int count, float* x_hat);
  /// code = number of the 2^bits - 1 ascending boundaries that are < x_hat.
  void (*assign_codes)(const float* x_hat, int count, const float* boundaries, int bits, std::uint8_t* codes);
  /// x = zero + scale * decoded[code].
  void (*decode_channels)(const std::uint8_t* codes, int count, const float* decoded, const float* zero,
                          const float* scale, float* x);
  void (*decode_token)(const std::uint8_t* codes, int count, const float* decoded, float zero, float scale, float* x);
  /// mask = 1 where x < lower or x > upper, else 0; returns how many.
  int (*mark_outside)(const float* x, const float* lower, const float* upper, int count, std::uint8_t* mask);
  /// Integers in the order of the floats, -0 as 0, written twice.
  void (*order_keys)(const float* x, int count, std::int32_t* keys, std::int32_t* copy);
  std::int32_t (*largest)(const std::int32_t* keys, int count);
  std::int32_t (*smallest)(const std::int32_t* keys, int count);
  /// Lowest index that holds `key`; it must be there.
  int (*first_equal)(const std::int32_t* keys, int count, std::int32_t key);
};

const EncodeLoops& encode_loops(SimdLevel level);

}  // namespace kvq
