#include <kvq/vector/bit_rows.h>

#include <kvq/core/error.h>

namespace kvq {

void pack_bits(std::span<const std::uint8_t> codes, int bits, std::vector<std::byte>& out) {
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  const std::size_t begin = out.size();
  out.resize(begin + packed_bytes(codes.size(), bits));
  std::byte* to = out.data() + begin;
  std::size_t code = 0;
  for (; code + 8 <= codes.size(); code += 8) {  // eight codes fill `bits` bytes
    std::uint64_t word = 0;
    for (int index = 0; index < 8; ++index)
      word |= std::uint64_t{codes[code + static_cast<std::size_t>(index)]} << (bits * index);
    for (int byte = 0; byte < bits; ++byte) *to++ = static_cast<std::byte>(word >> (8 * byte) & 0xffu);
  }
  std::uint64_t word = 0;
  int filled = 0;
  for (; code < codes.size(); ++code, filled += bits) word |= std::uint64_t{codes[code]} << filled;
  for (int byte = 0; 8 * byte < filled; ++byte) *to++ = static_cast<std::byte>(word >> (8 * byte) & 0xffu);
}

void unpack_bits(std::span<const std::byte> bytes, int bits, std::span<std::uint8_t> codes) {
  KVQ_ASSERT(bits >= 1 && bits <= 8 && bytes.size() == packed_bytes(codes.size(), bits));
  const std::uint64_t mask = (1u << bits) - 1;
  const std::byte* from = bytes.data();
  std::size_t code = 0;
  for (; code + 8 <= codes.size(); code += 8) {
    std::uint64_t word = 0;
    for (int byte = 0; byte < bits; ++byte) word |= static_cast<std::uint64_t>(*from++) << (8 * byte);
    for (int index = 0; index < 8; ++index)
      codes[code + static_cast<std::size_t>(index)] = static_cast<std::uint8_t>(word >> (bits * index) & mask);
  }
  std::uint64_t word = 0;
  for (int byte = 0; from < bytes.data() + bytes.size(); ++byte)
    word |= static_cast<std::uint64_t>(*from++) << (8 * byte);
  for (; code < codes.size(); ++code, word >>= bits) codes[code] = static_cast<std::uint8_t>(word & mask);
  if (word != 0) fail(ErrorKind::Io, "packed codes: the padding behind the last one is not zero");
}

}  // namespace kvq
