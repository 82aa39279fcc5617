#pragma once
// Little helpers to write binary files byte by byte, so that readers are tested on files that no writer of ours made.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvq::test {

/// Little-endian bytes of a number.
template <typename T>
std::string bytes_of(T value) {
  static_assert(std::is_arithmetic_v<T>);
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

inline std::string u32(std::uint32_t value) { return bytes_of(value); }
inline std::string u64(std::uint64_t value) { return bytes_of(value); }

/// GGUF's string: a 64-bit length and the bytes.
inline std::string gguf_string(std::string_view text) { return u64(text.size()) + std::string(text); }

}  // namespace kvq::test
