#pragma once
// Canonical Huffman codes of up to 256 symbols, at most 15 bits long.
//
// Why ours: of the libraries in Debian, zlib, zstd, brotli and aec keep their Huffman, FSE and Golomb coders behind
// whole file formats; none offers a static table that many small streams share and that is not stored with each of
// them.
//
// Lengths are optimal under the limit (package-merge: Larmore and Hirschberg, JACM 37, 1990). Codes are canonical as in
// RFC 1951, 3.2.2: shorter ones first, equal lengths by symbol. A stream is its codes one behind the other, the first
// bit in the highest bit of the first byte, padded with zero bits to whole bytes. It does not store how many symbols it
// has.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

inline constexpr int kLongestHuffmanCode = 15;

/// Lengths that take the fewest bits for `counts` (1 to 256 symbols) with none above `limit`; 0 for a symbol that is
/// not counted. A symbol alone has length 1 here, and takes no bits in a stream. Throws Numeric when nothing is
/// counted, and when `limit` bits cannot tell the symbols apart.
std::vector<std::uint8_t> huffman_lengths(std::span<const std::uint64_t> counts, int limit = kLongestHuffmanCode);

/// Const and thread-safe after construction.
class CanonicalHuffman {
 public:
  /// `lengths` as huffman_lengths() makes them. Throws Io when they are not those of a complete code.
  explicit CanonicalHuffman(std::vector<std::uint8_t> lengths);

  /// Lengths by symbol.
  const std::vector<std::uint8_t>& lengths() const { return lengths_; }

  /// Appends the table: symbols - 1 in a byte, then 4 bits for each length.
  void write_table(std::vector<std::byte>& out) const;
  /// Reads a table at bytes[offset] and moves `offset` behind it. Throws Io for what write_table() does not write.
  static CanonicalHuffman read_table(std::span<const std::byte> bytes, std::size_t& offset);

  /// Appends the stream of `codes`. Throws Numeric for a symbol without code.
  void encode(std::span<const std::uint8_t> codes, std::vector<std::byte>& out) const;
  /// Fills `codes` from the stream at the start of `bytes`; returns its bytes. Throws Io when it ends too early or its
  /// padding is not zero. Never reads outside `bytes`.
  std::size_t decode(std::span<const std::byte> bytes, std::span<std::uint8_t> codes) const;

 private:
  /// What the next kLookupBits bits hold: as many whole codes as fit, up to six.
  struct Lookup {
    std::uint8_t symbols[6] = {};
    std::uint8_t count = 0;  ///< 0: the code is longer than kLookupBits
    std::uint8_t bits = 0;   ///< of all of them
  };
  static_assert(sizeof(Lookup) == 8);
  static constexpr int kLookupBits = 12;

  void make_lookup();
  int decode_one(std::uint64_t window, std::uint8_t& symbol) const;

  std::vector<std::uint8_t> lengths_;
  std::vector<std::uint16_t> words_;    ///< code by symbol, in the low bits
  std::vector<std::uint8_t> in_order_;  ///< symbols by code
  std::uint32_t first_word_[kLongestHuffmanCode + 2] = {};
  int first_index_[kLongestHuffmanCode + 2] = {};  ///< into in_order_, by length
  std::vector<Lookup> lookup_;
  int sole_ = -1;  ///< the symbol of an alphabet of one
};

}  // namespace kvq
