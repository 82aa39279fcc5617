#pragma once
// Little-endian numbers to and from bytes, whatever the machine's own order.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <kvq/core/error.h>

namespace kvq {

/// Appends the low `width` bytes of `value`.
inline void put_number(std::vector<std::byte>& out, std::uint64_t value, int width) {
  for (int byte = 0; byte < width; ++byte) out.push_back(static_cast<std::byte>(value >> (8 * byte) & 0xffu));
}

inline void put_float(std::vector<std::byte>& out, float value) {
  put_number(out, std::bit_cast<std::uint32_t>(value), 4);
}

/// Takes numbers from the front of bytes; never reads behind their end.
class ByteReader {
 public:
  /// `what` begins the messages of errors.
  ByteReader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

  std::size_t offset() const { return offset_; }
  std::size_t left() const { return bytes_.size() - offset_; }

  /// Throws Io when fewer are left.
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left()) fail(ErrorKind::Io, std::string(what_) + ": ends too early");
    const auto taken = bytes_.subspan(offset_, static_cast<std::size_t>(count));
    offset_ += taken.size();
    return taken;
  }

  std::uint64_t number(int width) {
    std::uint64_t value = 0;
    const auto bytes = take(static_cast<std::uint64_t>(width));
    for (int byte = width - 1; byte >= 0; --byte)
      value = value << 8 | static_cast<std::uint64_t>(bytes[static_cast<std::size_t>(byte)]);
    return value;
  }

  float real() { return std::bit_cast<float>(static_cast<std::uint32_t>(number(4))); }

 private:
  std::span<const std::byte> bytes_;
  const char* what_;
  std::size_t offset_ = 0;
};

}  // namespace kvq
