#pragma once
// Codes of a row one behind the other, from the lowest bit of the first byte on; the last byte is padded with zeros.
// Internal to lib/vector.

#include <cstddef>
#include <cstdint>

namespace kvq {

constexpr std::int64_t bytes_of_codes(std::int64_t count, int bits) { return (count * bits + 7) / 8; }

/// Eight codes are `bits` bytes: no code of eight spans two such groups.
inline void pack_codes(const std::uint8_t* codes, int count, int bits, std::byte* out) {
  for (int first = 0; first < count; first += 8) {
    const int group = count - first < 8 ? count - first : 8;
    std::uint64_t word = 0;
    for (int index = 0; index < group; ++index) word |= std::uint64_t{codes[first + index]} << (index * bits);
    const auto bytes = static_cast<int>(bytes_of_codes(group, bits));
    for (int byte = 0; byte < bytes; ++byte) *out++ = static_cast<std::byte>(word >> (8 * byte) & 0xffu);
  }
}

/// False when padding bits are set.
inline bool unpack_codes(const std::byte* in, int count, int bits, std::uint8_t* codes) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (int first = 0; first < count; first += 8) {
    const int group = count - first < 8 ? count - first : 8;
    std::uint64_t word = 0;
    const auto bytes = static_cast<int>(bytes_of_codes(group, bits));
    for (int byte = 0; byte < bytes; ++byte) word |= static_cast<std::uint64_t>(*in++) << (8 * byte);
    for (int index = 0; index < group; ++index)
      codes[first + index] = static_cast<std::uint8_t>(word >> (index * bits) & mask);
    if (group < 8 && word >> (group * bits) != 0) return false;
  }
  return true;
}

}  // namespace kvq
