#include <kvq/vector/bit_rows.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <kvq/core/error.h>

namespace kvq {

namespace {

static_assert(std::endian::native == std::endian::little, "groups of codes are moved as words");

// Eight codes are `bits` whole bytes. They lie in a word, a code to a byte, and are moved together in three steps:
// within 16 bits, within 32, within 64.

constexpr std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }
/// The lowest `count` bits of every `lane` bits.
constexpr std::uint64_t lanes(int lane, int count) {
  std::uint64_t mask = 0;
  for (int at = 0; at < 64; at += lane) mask |= low_bits(count) << at;
  return mask;
}

template <int kBits>
std::uint64_t packed_word(std::uint64_t word) {
  if constexpr (kBits == 8) return word;
  word = (word & lanes(16, 8)) | (word & ~lanes(16, 8)) >> (8 - kBits);
  word = (word & lanes(32, 16)) | (word & ~lanes(32, 16)) >> (16 - 2 * kBits);
  return (word & low_bits(32)) | word >> 32 << 4 * kBits;
}

template <int kBits>
std::uint64_t unpacked_word(std::uint64_t word) {
  if constexpr (kBits == 8) return word;
  word = (word & low_bits(4 * kBits)) | (word >> 4 * kBits & low_bits(4 * kBits)) << 32;
  word = (word & lanes(32, 2 * kBits)) | (word >> 2 * kBits & lanes(32, 2 * kBits)) << 16;
  return (word & lanes(16, kBits)) | (word >> kBits & lanes(16, kBits)) << 8;
}

template <int kBits>
void pack(const std::uint8_t* codes, std::size_t count, std::byte* out) {
  std::size_t first = 0;
  for (; first + 8 <= count; first += 8, out += kBits) {
    std::uint64_t word = 0;
    std::memcpy(&word, codes + first, sizeof word);
    word = packed_word<kBits>(word);
    std::memcpy(out, &word, kBits);
  }
  if (first == count) return;
  std::uint64_t word = 0;
  std::memcpy(&word, codes + first, count - first);
  word = packed_word<kBits>(word);
  std::memcpy(out, &word, packed_bytes(count - first, kBits));
}

template <int kBits>
bool unpack(const std::byte* in, std::size_t count, std::uint8_t* codes) {
  std::size_t first = 0;
  for (; first + 8 <= count; first += 8, in += kBits) {
    std::uint64_t word = 0;
    std::memcpy(&word, in, kBits);
    word = unpacked_word<kBits>(word);
    std::memcpy(codes + first, &word, sizeof word);
  }
  if (first == count) return true;
  const std::size_t rest = count - first;
  std::uint64_t word = 0;
  std::memcpy(&word, in, packed_bytes(rest, kBits));
  const bool clean = word >> (rest * kBits) == 0;
  word = unpacked_word<kBits>(word);
  std::memcpy(codes + first, &word, rest);
  return clean;
}

template <std::size_t... kIndex>
constexpr auto packers(std::index_sequence<kIndex...>) {
  return std::array{&pack<static_cast<int>(kIndex) + 1>...};
}
template <std::size_t... kIndex>
constexpr auto unpackers(std::index_sequence<kIndex...>) {
  return std::array{&unpack<static_cast<int>(kIndex) + 1>...};
}

}  // namespace

void pack_bits(std::span<const std::uint8_t> codes, int bits, std::byte* out) {
  static constexpr auto kPackers = packers(std::make_index_sequence<8>());
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  kPackers[static_cast<std::size_t>(bits - 1)](codes.data(), codes.size(), out);
}

void pack_bits(std::span<const std::uint8_t> codes, int bits, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + packed_bytes(codes.size(), bits));
  pack_bits(codes, bits, out.data() + begin);
}

bool unpack_bits(const std::byte* bytes, int bits, std::span<std::uint8_t> codes) {
  static constexpr auto kUnpackers = unpackers(std::make_index_sequence<8>());
  KVQ_ASSERT(bits >= 1 && bits <= 8);
  return kUnpackers[static_cast<std::size_t>(bits - 1)](bytes, codes.size(), codes.data());
}

void unpack_bits(std::span<const std::byte> bytes, int bits, std::span<std::uint8_t> codes) {
  KVQ_ASSERT(bytes.size() == packed_bytes(codes.size(), bits));
  if (!unpack_bits(bytes.data(), bits, codes))
    fail(ErrorKind::Io, "packed codes: the padding behind the last one is not zero");
}

}  // namespace kvq
