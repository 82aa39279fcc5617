#pragma once
// Sizes of codes with 3, 5, 10 or 20 levels: three codes together take 5, 7, 10 or 13 bits (27, 125, 1000, 8000
// combinations), which is less than three codes alone would; a tail of one or two codes is stored singly. Together they
// are the number c0 + levels * c1 + levels^2 * c2 of codes c0, c1, c2 in their order.

#include <cstdint>

namespace kvq::layout {

inline constexpr int kGroupCodes = 3;

/// Smallest b with 2^b >= count.
constexpr int bits_for(int count) {
  int bits = 0;
  while ((1 << bits) < count) ++bits;
  return bits;
}

constexpr int group_bits(int levels) { return bits_for(levels * levels * levels); }

/// `count` codes in a row, the tail stored singly.
constexpr std::int64_t grouped_row_bits(int levels, int count) {
  return static_cast<std::int64_t>(count / kGroupCodes) * group_bits(levels) +
         static_cast<std::int64_t>(count % kGroupCodes) * bits_for(levels);
}

static_assert(group_bits(3) == 5 && group_bits(5) == 7 && group_bits(10) == 10 && group_bits(20) == 13);

}  // namespace kvq::layout
