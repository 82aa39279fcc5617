// rANS against Shannon's bound, brute force over frequencies, and damage.

#include <cmath>
#include <numeric>

#include <kvq/coding/entropy.h>
#include <kvq/coding/rans.h>

#include "coding/streams.h"

using namespace kvq;
using kvq::test::bell;
using kvq::test::damage_everywhere;
using kvq::test::drawn_symbols;

TEST_CASE("Frequencies sum to 4096 and leave no counted symbol out") {
  const std::vector<std::vector<std::uint64_t>> all = {
      {1, 1}, {1, 1000000000000}, {0, 3, 0}, std::vector<std::uint64_t>(256, 5), {1, 2, 3, 4, 5000000}, {7}};
  for (const auto& counts : all) {
    const auto frequencies = rans_frequencies(counts);
    CHECK(std::accumulate(frequencies.begin(), frequencies.end(), 0) == 4096);
    for (std::size_t symbol = 0; symbol < counts.size(); ++symbol)
      CHECK((frequencies[symbol] > 0) == (counts[symbol] > 0));
  }
  CHECK_THROWS_AS(rans_frequencies(std::vector<std::uint64_t>{0, 0}), Error);
}

TEST_CASE("Frequencies are the best of all, found by trying every pair of three") {
  const std::vector<std::uint64_t> counts = {17, 1, 4321};
  const auto bits = [&](int a, int b, int c) { return -17 * std::log2(a) - std::log2(b) - 4321 * std::log2(c); };
  double best = 1e300;
  for (int a = 1; a < 4095; ++a) {
    for (int b = 1; a + b < 4096; ++b) best = std::min(best, bits(a, b, 4096 - a - b));
  }
  const auto found = rans_frequencies(counts);
  CHECK(bits(found[0], found[1], found[2]) == Approx(best).epsilon(1e-12));
}

TEST_CASE("rANS streams decode to what was encoded, whatever the alphabet and the length") {
  for (const int levels : {2, 3, 16, 47, 256}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{6}, std::size_t{33}, std::size_t{20001}}) {
      const auto symbols = drawn_symbols(bell(levels), count, 11);
      std::vector<std::uint64_t> counts(static_cast<std::size_t>(levels), 1);
      for (const std::uint8_t symbol : symbols) ++counts[symbol];
      const RansCoder coder(rans_frequencies(counts));
      std::vector<std::byte> stream;
      coder.encode(symbols, stream);
      std::vector<std::byte> followed = stream;
      followed.insert(followed.end(), 16, std::byte{0xff});  // the next block must not matter
      std::vector<std::uint8_t> decoded(count);
      CHECK(coder.decode(followed, decoded) == stream.size());
      CHECK(decoded == symbols);
      CHECK(coder.decode(stream, decoded) == stream.size());
      CHECK(decoded == symbols);
    }
  }
}

TEST_CASE("rANS takes at most 0.5 % more than the entropy, and 16 bytes") {
  for (const int levels : {2, 4, 8, 16, 64, 256}) {
    const auto symbols = drawn_symbols(bell(levels), 200000, 13);
    const auto counts = count_symbols(symbols);
    const auto used = std::span<const std::uint64_t>(counts).first(static_cast<std::size_t>(levels));
    const RansCoder coder(rans_frequencies(used));
    std::vector<std::byte> stream;
    coder.encode(symbols, stream);
    const double bits = 8.0 * static_cast<double>(stream.size());
    INFO(levels << " levels: " << bits / 200000 << " bits, entropy " << shannon_bits(used));
    CHECK(bits <= 1.005 * shannon_bits(used) * 200000 + 128);
    CHECK(bits >= shannon_bits(used) * 200000);
  }
}

TEST_CASE("An alphabet of one symbol takes its four states only") {
  const RansCoder coder(rans_frequencies(std::vector<std::uint64_t>{0, 9}));
  std::vector<std::byte> stream;
  coder.encode(std::vector<std::uint8_t>(1000, 1), stream);
  CHECK(stream.size() == kRansStateBytes);
  std::vector<std::uint8_t> decoded(1000);
  coder.decode(stream, decoded);
  CHECK(decoded == std::vector<std::uint8_t>(1000, 1));
  CHECK_THROWS_AS(coder.encode(std::vector<std::uint8_t>{0}, stream), Error);
}

TEST_CASE("A stream of four symbols is what the recurrence gives by hand") {
  // Frequencies 1024 and 3072: from 2^16, symbol 0 leads to 64·4096 + 0, symbol 1 to 21·4096 + 1024 + 1024.
  const RansCoder coder({1024, 3072});
  std::vector<std::byte> stream;
  coder.encode(std::vector<std::uint8_t>{0, 1, 1, 0}, stream);
  const std::vector<std::uint32_t> states = {64 * 4096, 21 * 4096 + 2048, 21 * 4096 + 2048, 64 * 4096};
  REQUIRE(stream.size() == 16);
  for (std::size_t byte = 0; byte < 16; ++byte)
    CHECK(static_cast<std::uint32_t>(stream[byte]) == (states[byte / 4] >> (8 * (byte % 4)) & 0xffu));
}

TEST_CASE("rANS tables come back from bytes; damaged ones are refused") {
  for (const int levels : {1, 2, 16, 256}) {
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(levels));
    std::iota(counts.begin(), counts.end(), 1u);
    const RansCoder coder(rans_frequencies(counts));
    std::vector<std::byte> table;
    coder.write_table(table);
    std::size_t offset = 0;
    CHECK(RansCoder::read_table(table, offset).frequencies() == coder.frequencies());
    CHECK(offset == table.size());
    const int refused = damage_everywhere(table, [](auto bytes) {
      std::size_t at = 0;
      RansCoder::read_table(bytes, at);
      CHECK(at <= bytes.size());
    });
    CHECK(refused > 8 * static_cast<int>(table.size()));  // no flipped bit keeps the sum, no truncation all symbols
  }
}

TEST_CASE("Damaged rANS streams are refused, and are never read outside") {
  const auto symbols = drawn_symbols(bell(16), 400, 17);
  const auto counts = count_symbols(symbols);
  const RansCoder coder(rans_frequencies(std::span<const std::uint64_t>(counts).first(16)));
  std::vector<std::byte> stream;
  coder.encode(symbols, stream);
  std::vector<std::uint8_t> decoded(symbols.size());
  const int refused = damage_everywhere(stream, [&](auto bytes) {
    const std::size_t used = coder.decode(bytes, decoded);
    CHECK(used <= bytes.size());
  });
  // Final states are checked, so that nearly every flipped bit shows.
  CHECK(refused > 8 * static_cast<int>(stream.size()));
}
