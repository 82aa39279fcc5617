// Huffman codes against Python's heapq and brute force (tests/golden/vector.json, made by
// scripts/reference/expected_vector.py), and against damage.

#include <algorithm>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include <kvq/coding/canonical_huffman.h>
#include <kvq/coding/entropy.h>

#include "coding/streams.h"

using namespace kvq;
using kvq::test::damage_everywhere;
using kvq::test::drawn_symbols;

namespace {

nlohmann::json golden(const char* part) {
  std::ifstream file(std::string(KVQ_SOURCE_DIR) + "/tests/golden/vector.json");
  return nlohmann::json::parse(file).at(part);
}

std::uint64_t total_bits(const std::vector<std::uint64_t>& counts, const std::vector<std::uint8_t>& lengths) {
  std::uint64_t bits = 0;
  for (std::size_t symbol = 0; symbol < counts.size(); ++symbol) bits += counts[symbol] * lengths[symbol];
  return bits;
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

}  // namespace

TEST_CASE("Lengths of Huffman codes are those that heapq finds, and the best under a limit") {
  for (const auto& expected : golden("huffman")) {
    const auto counts = expected.at("counts").get<std::vector<std::uint64_t>>();
    INFO(expected.at("name"));
    const std::vector<std::uint8_t> lengths = huffman_lengths(counts);
    CHECK(total_bits(counts, lengths) == expected.at("bits").get<std::uint64_t>());
    // Ties can be broken another way, but not between symbols with different lengths: the sorted lengths agree.
    auto sorted = lengths, others = expected.at("lengths").get<std::vector<std::uint8_t>>();
    std::sort(sorted.begin(), sorted.end());
    std::sort(others.begin(), others.end());
    CHECK(sorted == others);
    for (const auto& [limit, bits] : expected.at("limited").items()) {
      INFO("limit " << limit);
      const std::vector<std::uint8_t> limited = huffman_lengths(counts, std::stoi(limit));
      CHECK(*std::max_element(limited.begin(), limited.end()) <= std::stoi(limit));
      CHECK(total_bits(counts, limited) == bits.get<std::uint64_t>());
    }
  }
}

TEST_CASE("Codes are canonical: the example of RFC 1951, 3.2.2") {
  // Symbols A to H with lengths 3 3 3 3 3 2 4 4 get 010 011 100 101 110 00 1110 1111.
  const CanonicalHuffman code({3, 3, 3, 3, 3, 2, 4, 4});
  std::vector<std::byte> stream;
  code.encode(std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7}, stream);
  // 01001110 01011100 01110111 1, padded
  CHECK((stream == bytes_of({0b01001110, 0b01011100, 0b01110111, 0b10000000})));
}

TEST_CASE("Huffman streams decode to what was encoded, whatever the alphabet and the length") {
  for (const int levels : {2, 3, 16, 47, 256}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{33}, std::size_t{20000}}) {
      const auto symbols = drawn_symbols(kvq::test::bell(levels), count, 7);
      std::vector<std::uint64_t> counts(static_cast<std::size_t>(levels), 1);
      for (const std::uint8_t symbol : symbols) ++counts[symbol];
      const CanonicalHuffman code(huffman_lengths(counts));
      std::vector<std::byte> stream;
      code.encode(symbols, stream);
      CHECK(stream.size() == (std::accumulate(symbols.begin(), symbols.end(), std::size_t{0},
                                              [&](auto sum, auto symbol) { return sum + code.lengths()[symbol]; }) +
                              7) /
                                 8);
      std::vector<std::byte> followed = stream;
      followed.push_back(std::byte{0xff});  // the next block must not matter
      std::vector<std::uint8_t> decoded(count);
      CHECK(code.decode(followed, decoded) == stream.size());
      CHECK(decoded == symbols);
    }
  }
}

TEST_CASE("Codes as long as the limit are decoded, though no look-up holds them") {
  std::vector<std::uint64_t> counts(40);
  std::uint64_t before = 1, now = 1;
  for (std::uint64_t& count : counts) {
    count = now;
    now += std::exchange(before, now);
  }
  const CanonicalHuffman code(huffman_lengths(counts));
  CHECK(*std::max_element(code.lengths().begin(), code.lengths().end()) == kLongestHuffmanCode);
  std::vector<std::uint8_t> symbols(3000);
  for (std::size_t at = 0; at < symbols.size(); ++at) symbols[at] = static_cast<std::uint8_t>(at * 7 % 40);
  std::vector<std::byte> stream;
  code.encode(symbols, stream);
  std::vector<std::uint8_t> decoded(symbols.size());
  code.decode(stream, decoded);
  CHECK(decoded == symbols);
}

TEST_CASE("An alphabet of one symbol takes no bits") {
  const CanonicalHuffman code(huffman_lengths(std::vector<std::uint64_t>{0, 0, 9, 0}));
  std::vector<std::byte> stream;
  code.encode(std::vector<std::uint8_t>{2, 2, 2}, stream);
  CHECK(stream.empty());
  std::vector<std::uint8_t> decoded(3, 0);
  CHECK(code.decode(stream, decoded) == 0);
  CHECK(decoded == std::vector<std::uint8_t>{2, 2, 2});
  CHECK_THROWS_AS(code.encode(std::vector<std::uint8_t>{1}, stream), Error);
}

TEST_CASE("Huffman codes stay within a bit of the entropy, and of 3.78 bits for 16 levels of a bell") {
  const auto symbols = drawn_symbols(kvq::test::bell(16), 100000, 3);
  const auto counts = count_symbols(symbols);
  const CanonicalHuffman code(huffman_lengths(std::span<const std::uint64_t>(counts).first(16)));
  std::vector<std::byte> stream;
  code.encode(symbols, stream);
  const double bits = 8.0 * static_cast<double>(stream.size()) / static_cast<double>(symbols.size());
  CHECK(bits >= shannon_bits(counts));
  CHECK(bits < shannon_bits(counts) + 0.06);
}

TEST_CASE("Huffman tables come back from bytes; damaged ones are refused") {
  for (const int levels : {2, 5, 16, 256}) {
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(levels));
    std::iota(counts.begin(), counts.end(), 1u);
    const CanonicalHuffman code(huffman_lengths(counts));
    std::vector<std::byte> table = bytes_of({42});
    code.write_table(table);
    CHECK(table.size() == 2 + (static_cast<std::size_t>(levels) + 1) / 2);
    std::size_t offset = 1;
    CHECK(CanonicalHuffman::read_table(table, offset).lengths() == code.lengths());
    CHECK(offset == table.size());
  }
  std::size_t offset = 0;
  for (const auto& bad :
       {bytes_of({}), bytes_of({3}), bytes_of({3, 0x22}), bytes_of({3, 0x22, 0x21}), bytes_of({3, 0x22, 0x23}),
        bytes_of({2, 0x21, 0x12}), bytes_of({1, 0x00}), bytes_of({1, 0x02})}) {
    CHECK_THROWS_AS(CanonicalHuffman::read_table(bad, offset), Error);
    CHECK(offset == 0);
  }
}

TEST_CASE("Damaged Huffman streams are refused or decode to something, and are never read outside") {
  const auto symbols = drawn_symbols(kvq::test::bell(16), 400, 5);
  const auto counts = count_symbols(symbols);
  const CanonicalHuffman code(huffman_lengths(std::span<const std::uint64_t>(counts).first(16)));
  std::vector<std::byte> stream;
  code.encode(symbols, stream);
  std::vector<std::uint8_t> decoded(symbols.size());
  const int refused = damage_everywhere(stream, [&](auto bytes) {
    const std::size_t used = code.decode(bytes, decoded);
    CHECK(used <= bytes.size());
  });
  CHECK(refused >= static_cast<int>(stream.size()));  // every truncation
}

TEST_CASE("A Huffman code without counts, or with too few bits for its symbols, is an error") {
  CHECK_THROWS_AS(huffman_lengths(std::vector<std::uint64_t>{0, 0}), Error);
  CHECK_THROWS_AS(huffman_lengths(std::vector<std::uint64_t>(9, 1), 3), Error);
}
