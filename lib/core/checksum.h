#pragma once
// Tells damage in files of our own. No protection against anybody.

#include <cstdint>
#include <string_view>

namespace kvq {

/// CRC-32 (zlib's) in the low half, the number of bytes in the high one.
std::uint64_t checksum_of(const void* data, std::int64_t bytes);
inline std::uint64_t checksum_of(std::string_view text) {
  return checksum_of(text.data(), static_cast<std::int64_t>(text.size()));
}

}  // namespace kvq
