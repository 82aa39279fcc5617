#include <kvq/artifacts/internal/h5_deflate.h>

#include <zlib.h>

#include <kvq/core/error.h>

namespace kvq::h5 {

std::vector<std::byte> shuffle_and_deflate(std::span<const std::byte> data, std::uint64_t chunk_bytes,
                                           std::size_t element_bytes) {
  const std::size_t elements = chunk_bytes / element_bytes;
  const std::size_t present = data.size() / element_bytes;
  std::vector<std::byte> planes(chunk_bytes);  // first bytes of all elements, then all second bytes, ...
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    std::byte* plane = planes.data() + byte * elements;
    for (std::size_t index = 0; index < present; ++index) plane[index] = data[index * element_bytes + byte];
  }
  uLongf size = compressBound(static_cast<uLong>(chunk_bytes));
  std::vector<std::byte> packed(size);
  const int status =
      compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(planes.data()),
                static_cast<uLong>(chunk_bytes), kDeflateLevel);
  if (status == Z_MEM_ERROR) fail(ErrorKind::Memory, "not enough memory to compress a chunk");
  KVQ_ASSERT(status == Z_OK);
  packed.resize(size);
  return packed;
}

}  // namespace kvq::h5
