#pragma once
// Range asymmetric numeral systems (rANS: Duda, arXiv 1311.2540) with a static model of up to 256 symbols: within a
// thousandth of a bit of Shannon's bound where Huffman codes, whole bits each, cannot be.
//
// Why ours: Debian's zstd keeps its tANS (FSE) behind its own frames, and there is no other packaged library of ANS.
//
// Frequencies are integers that sum to 2^12. Four states of 32 bits take turns (symbol i belongs to state i mod 4),
// which lets a processor decode them side by side, as in Giesen, arXiv 1402.3392. A stream is the four final states of
// the encoder (32 bits each, state 0 first), then 16-bit words in the order in which decoding takes them, all
// little-endian. Decoding must end with every state at 2^16, where encoding began. The number of symbols is not stored.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

inline constexpr int kRansBits = 12;
inline constexpr int kRansStates = 4;
inline constexpr std::size_t kRansStateBytes = 4 * kRansStates;  ///< the least a stream takes

/// Frequencies that sum to 2^12, at least 1 for every symbol that is counted and 0 for others, and that take the fewest
/// bits for `counts` (1 to 256 symbols). Throws Numeric when nothing is counted.
std::vector<std::uint16_t> rans_frequencies(std::span<const std::uint64_t> counts);

/// Const and thread-safe after construction.
class RansCoder {
 public:
  /// Throws Io when the frequencies do not sum to 2^12.
  explicit RansCoder(std::vector<std::uint16_t> frequencies);

  const std::vector<std::uint16_t>& frequencies() const { return frequencies_; }

  /// Appends the table: symbols - 1 in a byte, then each frequency: a byte below 128, else its low 7 bits with the top
  /// bit set, and a byte for the rest.
  void write_table(std::vector<std::byte>& out) const;
  /// Reads a table at bytes[offset] and moves `offset` behind it. Throws Io for what write_table() does not write.
  static RansCoder read_table(std::span<const std::byte> bytes, std::size_t& offset);

  /// Appends the stream of `codes`. Throws Numeric for a symbol of frequency 0.
  void encode(std::span<const std::uint8_t> codes, std::vector<std::byte>& out) const;
  /// Fills `codes` from the stream at the start of `bytes`; returns its bytes. Throws Io when it ends too early or is
  /// none of encode()'s. Never reads outside `bytes`.
  std::size_t decode(std::span<const std::byte> bytes, std::span<std::uint8_t> codes) const;

 private:
  struct Slot {
    std::uint16_t frequency;
    std::uint16_t offset;  ///< from the symbol's first slot
  };

  std::vector<std::uint16_t> frequencies_;
  std::vector<std::uint16_t> starts_;  ///< sums of the frequencies before
  std::vector<Slot> slots_;            ///< by the low 12 bits of a state
  std::vector<std::uint8_t> symbols_;  ///< likewise
};

}  // namespace kvq
