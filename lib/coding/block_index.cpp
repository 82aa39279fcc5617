#include <kvq/coding/block_index.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

void BlockIndex::write(std::vector<std::byte>& out) const {
  if (blocks() == 0) return;
  const std::size_t last = blocks() - 1;
  const std::uint64_t first_length = end(0) - begin(0);
  std::uint64_t longest = 0;
  bool equal = true;
  for (std::size_t block = 0; block < blocks(); ++block) {
    const std::uint64_t length = end(block) - begin(block);
    longest = std::max(longest, length);
    equal = equal && (length == first_length || block == last);
  }
  if (equal) {
    put_number(out, 0, 1);
    put_number(out, first_length, 8);
    put_number(out, end(last) - begin(last), 8);
    return;
  }
  if (longest >> 32 != 0) fail(ErrorKind::Numeric, fmt::format("index of blocks: a block of {} bytes", longest));
  int width = 1;
  while (longest >> (8 * width) != 0) ++width;
  put_number(out, static_cast<std::uint64_t>(width), 1);
  for (std::size_t block = 0; block < blocks(); ++block) put_number(out, end(block) - begin(block), width);
}

BlockIndex BlockIndex::read(ByteReader& reader, std::uint64_t blocks) {
  BlockIndex index;
  if (blocks == 0) return index;
  const int width = static_cast<int>(reader.number(1));
  if (width > 4) fail(ErrorKind::Io, fmt::format("index of blocks: lengths of {} bytes", width));
  if (width == 0) {
    const std::uint64_t length = reader.number(8), last = reader.number(8);
    // Before any of the `blocks` steps: what a damaged number promises must be there.
    const bool fits = blocks == 1 ? length == last : length > 0 && length <= reader.left() / (blocks - 1);
    if (!fits || last > reader.left())
      fail(ErrorKind::Io, fmt::format("index of blocks: {} blocks of {} bytes, the last of {}, in {} bytes", blocks,
                                      length, last, reader.left()));
    for (std::uint64_t block = 0; block + 1 < blocks; ++block) index.add(length);
    index.add(last);
  } else {
    if (blocks > reader.left() / static_cast<std::size_t>(width))
      fail(ErrorKind::Io, "index of blocks: ends too early");
    for (std::uint64_t block = 0; block < blocks; ++block) index.add(reader.number(width));
  }
  if (index.payload_bytes() > reader.left())
    fail(ErrorKind::Io,
         fmt::format("index of blocks: {} bytes of blocks, {} are there", index.payload_bytes(), reader.left()));
  return index;
}

}  // namespace kvq
