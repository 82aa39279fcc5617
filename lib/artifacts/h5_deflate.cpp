#include <kvq/artifacts/internal/h5_deflate.h>

#include <zlib.h>

#include <array>
#include <cmath>

#include <kvq/core/error.h>

namespace kvq::h5 {

namespace {

/// Bits per byte that an entropy coder needs for these bytes.
double entropy(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 256> count{};
  for (const std::byte byte : bytes) ++count[static_cast<unsigned char>(byte)];
  double bits = 0;
  for (const std::uint64_t times : count) {
    if (times > 0)
      bits += static_cast<double>(times) * std::log2(static_cast<double>(bytes.size()) / static_cast<double>(times));
  }
  return bytes.empty() ? 0 : bits / static_cast<double>(bytes.size());
}

/// One zlib stream whose parts may be stored or compressed. Run lengths and Huffman codes only: floating-point numbers
/// hold no repeated strings, and searching for them takes four times as long for a larger result.
class Deflater {
 public:
  Deflater(std::span<std::byte> out) {
    // Level and strategy are not part of the format; HDF5's filter reads any zlib stream.
    const int status = deflateInit2(&stream_, kDeflateLevel, Z_DEFLATED, 15, 8, Z_RLE);
    if (status == Z_MEM_ERROR) fail(ErrorKind::Memory, "not enough memory to compress a chunk");
    KVQ_ASSERT(status == Z_OK);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
  }
  ~Deflater() { deflateEnd(&stream_); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  void add(std::span<const std::byte> bytes, int level, bool last) {
    KVQ_ASSERT(deflateParams(&stream_, level, Z_RLE) == Z_OK);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    const int status = deflate(&stream_, last ? Z_FINISH : Z_NO_FLUSH);
    KVQ_ASSERT(status == (last ? Z_STREAM_END : Z_OK) && stream_.avail_in == 0);
  }
  std::size_t size() const { return stream_.total_out; }

 private:
  z_stream stream_{};
};

}  // namespace

std::vector<std::byte> shuffle_and_deflate(std::span<const std::byte> data, std::uint64_t chunk_bytes,
                                           std::size_t element_bytes) {
  KVQ_ASSERT(chunk_bytes > 0 && chunk_bytes < (std::uint64_t{1} << 31));
  const std::size_t elements = chunk_bytes / element_bytes;
  const std::size_t present = data.size() / element_bytes;
  std::vector<std::byte> planes(chunk_bytes);  // first bytes of all elements, then all second bytes, ...
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    std::byte* plane = planes.data() + byte * elements;
    for (std::size_t index = 0; index < present; ++index) plane[index] = data[index * element_bytes + byte];
  }
  // Stored blocks and the change between the two ways cost a few bytes beyond zlib's own bound.
  std::vector<std::byte> packed(compressBound(static_cast<uLong>(chunk_bytes)) + 64 * element_bytes +
                                chunk_bytes / 1024);
  Deflater deflater(packed);
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    const std::span<const std::byte> plane = std::span(planes).subspan(byte * elements, elements);
    constexpr double kNoise = 7.8;  // low mantissa bytes: nothing to be gained
    deflater.add(plane, entropy(plane) > kNoise ? 0 : kDeflateLevel, byte + 1 == element_bytes);
  }
  packed.resize(deflater.size());
  return packed;
}

}  // namespace kvq::h5
