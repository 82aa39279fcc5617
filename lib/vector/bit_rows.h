#pragma once
// Codes of 1 to 8 bits packed tightly, the first in the lowest bits of the first byte, padded with zero bits to whole
// bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

inline std::size_t packed_bytes(std::size_t count, int bits) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

/// Writes packed_bytes(codes.size(), bits) bytes; every code < 2^bits.
void pack_bits(std::span<const std::uint8_t> codes, int bits, std::byte* out);
/// The same, appended.
void pack_bits(std::span<const std::uint8_t> codes, int bits, std::vector<std::byte>& out);

/// Reads packed_bytes(codes.size(), bits) bytes. False when padding is not zero.
bool unpack_bits(const std::byte* bytes, int bits, std::span<std::uint8_t> codes);
/// The same. Throws Io when padding is not zero.
void unpack_bits(std::span<const std::byte> bytes, int bits, std::span<std::uint8_t> codes);

/// fp16 as two bytes, little-endian.
inline void put_half(std::uint16_t half, std::vector<std::byte>& out) {
  out.push_back(static_cast<std::byte>(half & 0xffu));
  out.push_back(static_cast<std::byte>(half >> 8));
}
/// `bytes`: at least two.
inline std::uint16_t get_half(std::span<const std::byte> bytes) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(bytes[0]) | static_cast<unsigned>(bytes[1]) << 8);
}

}  // namespace kvq
