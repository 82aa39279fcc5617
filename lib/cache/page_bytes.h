#pragma once
// Numbers in pages. Pages are little-endian, as are all machines that this runs on.

#include <bit>
#include <cstdint>
#include <cstring>

namespace kvq {

static_assert(std::endian::native == std::endian::little, "packed pages are little-endian");

template <typename Number>
Number load_number(const std::uint8_t* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

template <typename Number>
void store_number(std::uint8_t* to, Number number) {
  std::memcpy(to, &number, sizeof number);
}

/// Up to 17 bits at any place, from the lowest bit of the first byte up; no byte beyond theirs is touched.
inline std::uint32_t load_bits(const std::uint8_t* bytes, std::int64_t first, int bits) {
  std::uint32_t value = 0;
  for (std::int64_t byte = (first + bits - 1) / 8; byte >= first / 8; --byte) value = value << 8 | bytes[byte];
  return value >> (first % 8) & ((1u << bits) - 1);
}
inline void store_bits(std::uint8_t* bytes, std::int64_t first, int bits, std::uint32_t value) {
  const std::uint32_t mask = ((1u << bits) - 1) << (first % 8), placed = value << (first % 8);
  for (std::int64_t byte = first / 8; byte <= (first + bits - 1) / 8; ++byte) {
    const auto shift = static_cast<int>(8 * (byte - first / 8));
    bytes[byte] = static_cast<std::uint8_t>((bytes[byte] & ~(mask >> shift)) | (placed >> shift & 0xffu));
  }
}

/// Element `index` of an array of numbers of 1 or 2 bytes.
inline int load_small(const std::uint8_t* array, std::int64_t index, int bytes) {
  return bytes == 1 ? array[index] : load_number<std::uint16_t>(array + 2 * index);
}
inline void store_small(std::uint8_t* array, std::int64_t index, int bytes, int number) {
  if (bytes == 1) {
    array[index] = static_cast<std::uint8_t>(number);
  } else {
    store_number(array + 2 * index, static_cast<std::uint16_t>(number));
  }
}

}  // namespace kvq
