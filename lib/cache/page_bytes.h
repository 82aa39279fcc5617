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
