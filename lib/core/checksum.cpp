#include <kvq/core/checksum.h>

#include <zlib.h>

namespace kvq {

std::uint64_t checksum_of(const void* data, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  return std::uint64_t{size} << 32 | crc32_z(0, static_cast<const Bytef*>(data), size);
}

}  // namespace kvq
