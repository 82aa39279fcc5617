#include <kvq/coding/canonical_huffman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// An item of package-merge: a symbol, or a pair of items of the list before.
struct Package {
  std::uint64_t weight = 0;
  int symbol = -1;  ///< -1: a pair
};

/// Big-endian 64 bits from bytes[at]; zeros behind the end.
std::uint64_t window_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t window = 0;
  const std::size_t there = at < bytes.size() ? std::min<std::size_t>(8, bytes.size() - at) : 0;
  for (std::size_t byte = 0; byte < there; ++byte)
    window |= static_cast<std::uint64_t>(bytes[at + byte]) << (56 - 8 * byte);
  return window;
}

/// The same where all eight are there.
std::uint64_t whole_window(const std::byte* from) {
  std::uint64_t window;
  std::memcpy(&window, from, 8);
  return std::endian::native == std::endian::little ? __builtin_bswap64(window) : window;
}

[[noreturn]] void refuse_stream(const std::string& what) { fail(ErrorKind::Io, "Huffman stream: " + what); }

}  // namespace

std::vector<std::uint8_t> huffman_lengths(std::span<const std::uint64_t> counts, int limit) {
  KVQ_ASSERT(!counts.empty() && counts.size() <= 256 && limit >= 1 && limit <= kLongestHuffmanCode);
  std::vector<Package> singles;
  for (std::size_t symbol = 0; symbol < counts.size(); ++symbol) {
    if (counts[symbol] > 0) singles.push_back({counts[symbol], static_cast<int>(symbol)});
  }
  std::vector<std::uint8_t> lengths(counts.size(), 0);
  if (singles.empty()) fail(ErrorKind::Numeric, "Huffman code: no symbol is counted");
  if (singles.size() == 1) {
    lengths[static_cast<std::size_t>(singles[0].symbol)] = 1;
    return lengths;
  }
  if (singles.size() > std::size_t{1} << limit)
    fail(ErrorKind::Numeric, fmt::format("Huffman code: {} symbols with at most {} bits", singles.size(), limit));
  std::stable_sort(singles.begin(), singles.end(),
                   [](const Package& a, const Package& b) { return a.weight < b.weight; });

  // lists[depth]: the singles merged with the pairs of lists[depth - 1]. The first 2n - 2 items of the last list are
  // the answer; a symbol's length is how often it stands in them, pairs opened.
  std::vector<std::vector<Package>> lists(static_cast<std::size_t>(limit));
  lists[0] = singles;
  for (std::size_t depth = 1; depth < lists.size(); ++depth) {
    const std::vector<Package>& before = lists[depth - 1];
    std::vector<Package> pairs;
    for (std::size_t first = 0; first + 1 < before.size(); first += 2)
      pairs.push_back({before[first].weight + before[first + 1].weight, -1});
    std::merge(singles.begin(), singles.end(), pairs.begin(), pairs.end(), std::back_inserter(lists[depth]),
               [](const Package& a, const Package& b) { return a.weight < b.weight; });
  }
  // A prefix of a list opens to the singles and to a prefix, twice as long as its pairs, of the list before.
  std::size_t taken = 2 * singles.size() - 2;
  for (std::size_t depth = lists.size(); depth-- > 0;) {
    std::size_t pairs = 0;
    for (std::size_t item = 0; item < taken; ++item) {
      const int symbol = lists[depth][item].symbol;
      if (symbol < 0)
        ++pairs;
      else
        ++lengths[static_cast<std::size_t>(symbol)];
    }
    taken = 2 * pairs;
  }
  return lengths;
}

CanonicalHuffman::CanonicalHuffman(std::vector<std::uint8_t> lengths) : lengths_(std::move(lengths)) {
  KVQ_ASSERT(!lengths_.empty() && lengths_.size() <= 256);
  std::uint32_t space = 0;  // taken of 2^15
  int per_length[kLongestHuffmanCode + 1] = {};
  for (std::size_t symbol = 0; symbol < lengths_.size(); ++symbol) {
    const int length = lengths_[symbol];
    if (length > kLongestHuffmanCode) fail(ErrorKind::Io, fmt::format("Huffman table: a length of {}", length));
    if (length == 0) continue;
    ++per_length[length];
    space += std::uint32_t{1} << (kLongestHuffmanCode - length);
    sole_ = static_cast<int>(symbol);
  }
  const bool alone = std::count(lengths_.begin(), lengths_.end(), 0) + 1 == std::ptrdiff_t(lengths_.size());
  if (alone && per_length[1] == 1) return;
  sole_ = -1;
  if (space != std::uint32_t{1} << kLongestHuffmanCode)
    fail(ErrorKind::Io, "Huffman table: its lengths do not make a complete code");

  std::uint32_t word = 0;
  int index = 0;
  for (int length = 1; length <= kLongestHuffmanCode; ++length) {
    first_word_[length] = word;
    first_index_[length] = index;
    word = (word + static_cast<std::uint32_t>(per_length[length])) << 1;
    index += per_length[length];
  }
  first_index_[kLongestHuffmanCode + 1] = index;
  words_.resize(lengths_.size());
  for (int length = 1; length <= kLongestHuffmanCode; ++length) {
    std::uint32_t next = first_word_[length];
    for (std::size_t symbol = 0; symbol < lengths_.size(); ++symbol) {
      if (lengths_[symbol] != length) continue;
      words_[symbol] = static_cast<std::uint16_t>(next++);
      in_order_.push_back(static_cast<std::uint8_t>(symbol));
    }
  }
  make_lookup();
}

void CanonicalHuffman::make_lookup() {
  lookup_.resize(std::size_t{1} << kLookupBits);
  for (std::size_t bits = 0; bits < lookup_.size(); ++bits) {
    Lookup& entry = lookup_[bits];
    while (entry.count < 6 && entry.bits < kLookupBits) {
      std::uint8_t symbol = 0;
      const int length = decode_one(static_cast<std::uint64_t>(bits) << (64 - kLookupBits + entry.bits), symbol);
      if (entry.bits + length > kLookupBits) break;
      entry.symbols[entry.count++] = symbol;
      entry.bits = static_cast<std::uint8_t>(entry.bits + length);
    }
  }
}

/// Length of the code at the top of `window`.
int CanonicalHuffman::decode_one(std::uint64_t window, std::uint8_t& symbol) const {
  for (int length = 1; length <= kLongestHuffmanCode; ++length) {
    const std::uint32_t word = static_cast<std::uint32_t>(window >> (64 - length));
    const std::uint32_t beyond = word - first_word_[length];  // huge where word comes before
    if (word >= first_word_[length] &&
        beyond < static_cast<std::uint32_t>(first_index_[length + 1] - first_index_[length])) {
      symbol = in_order_[static_cast<std::size_t>(first_index_[length]) + beyond];
      return length;
    }
  }
  KVQ_ASSERT(false);  // complete codes leave no word over
  return 0;
}

void CanonicalHuffman::write_table(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(lengths_.size() - 1));
  for (std::size_t symbol = 0; symbol < lengths_.size(); symbol += 2) {
    const unsigned high = symbol + 1 < lengths_.size() ? lengths_[symbol + 1] : 0u;
    out.push_back(static_cast<std::byte>(lengths_[symbol] | high << 4));
  }
}

CanonicalHuffman CanonicalHuffman::read_table(std::span<const std::byte> bytes, std::size_t& offset) {
  if (offset >= bytes.size()) fail(ErrorKind::Io, "Huffman table: missing");
  const std::size_t symbols = static_cast<std::size_t>(bytes[offset]) + 1;
  if (bytes.size() - offset - 1 < (symbols + 1) / 2) fail(ErrorKind::Io, "Huffman table: ends too early");
  std::vector<std::uint8_t> lengths(symbols);
  for (std::size_t symbol = 0; symbol < symbols; ++symbol) {
    const unsigned both = static_cast<unsigned>(bytes[offset + 1 + symbol / 2]);
    lengths[symbol] = static_cast<std::uint8_t>(symbol % 2 == 0 ? both & 15u : both >> 4);
  }
  if (symbols % 2 == 1 && static_cast<unsigned>(bytes[offset + symbols / 2 + 1]) >> 4 != 0)
    fail(ErrorKind::Io, "Huffman table: its padding is not zero");
  CanonicalHuffman code(std::move(lengths));
  offset += 1 + (symbols + 1) / 2;
  return code;
}

void CanonicalHuffman::encode(std::span<const std::uint8_t> codes, std::vector<std::byte>& out) const {
  std::size_t bits = 0;
  for (const std::uint8_t code : codes) {
    if (code >= lengths_.size() || lengths_[code] == 0)
      fail(ErrorKind::Numeric, fmt::format("Huffman code: symbol {} has none, it was never counted", code));
    bits += lengths_[code];
  }
  if (sole_ >= 0) return;
  const std::size_t begin = out.size();
  out.resize(begin + (bits + 7) / 8);
  std::byte* to = out.data() + begin;
  std::uint64_t pending = 0;
  int pending_bits = 0;
  for (const std::uint8_t code : codes) {
    pending = pending << lengths_[code] | words_[code];
    pending_bits += lengths_[code];
    if (pending_bits < 32) continue;
    pending_bits -= 32;
    const std::uint64_t full = pending >> pending_bits;
    for (int shift = 24; shift >= 0; shift -= 8) *to++ = static_cast<std::byte>(full >> shift & 0xffu);
  }
  pending <<= 32 - pending_bits;
  for (int shift = 24; pending_bits > 0; pending_bits -= 8, shift -= 8)
    *to++ = static_cast<std::byte>(pending >> shift & 0xffu);
}

std::size_t CanonicalHuffman::decode(std::span<const std::byte> bytes, std::span<std::uint8_t> codes) const {
  if (sole_ >= 0) {
    std::fill(codes.begin(), codes.end(), static_cast<std::uint8_t>(sole_));
    return 0;
  }
  std::size_t done = 0, bit = 0;
  // Four look-ups need at most 48 of the 57 bits that a window has from any bit on, and write at most 8 bytes past 18.
  const Lookup* lookup = lookup_.data();
  while (codes.size() - done >= 32 && bit / 8 + 8 <= bytes.size()) {
    std::uint64_t window = whole_window(bytes.data() + bit / 8) << (bit % 8);
    std::uint8_t* const begin = codes.data() + done;
    std::uint8_t* to = begin;
    unsigned used = 0;
    for (int round = 0; round < 4; ++round) {
      Lookup entry;  // a copy: the bytes written could be the table's for all that the compiler knows
      std::memcpy(&entry, lookup + (window >> (64 - kLookupBits)), sizeof entry);
      if (entry.count == 0) break;
      std::memcpy(to, &entry, sizeof entry);  // symbols, and two bytes that the next ones overwrite
      to += entry.count;
      window <<= entry.bits;
      used += entry.bits;
    }
    bit += used;
    if (to == begin) bit += static_cast<std::size_t>(decode_one(window, *to++));
    done += static_cast<std::size_t>(to - begin);
  }
  for (; done < codes.size(); ++done) {
    bit += static_cast<std::size_t>(decode_one(window_at(bytes, bit / 8) << (bit % 8), codes[done]));
    if (bit > 8 * bytes.size()) refuse_stream(fmt::format("ends after {} of {} symbols", done, codes.size()));
  }
  if (bit % 8 != 0 && (static_cast<unsigned>(bytes[bit / 8]) & (0xffu >> (bit % 8))) != 0)
    refuse_stream("the padding behind the last symbol is not zero");
  return (bit + 7) / 8;
}

}  // namespace kvq
