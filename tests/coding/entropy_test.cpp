// Shannon's entropy of distributions whose value is known by hand.

#include <cmath>

#include <kvq/coding/entropy.h>

#include "support/catch.h"

using namespace kvq;

TEST_CASE("Entropy of counts is what the definition gives by hand") {
  using Counts = std::vector<std::uint64_t>;
  CHECK(shannon_bits(Counts{1, 1, 1, 1}) == Approx(2.0));
  CHECK(shannon_bits(Counts{8, 4, 2, 2}) == Approx(1.75));  // 1/2·1 + 1/4·2 + 2·1/8·3
  CHECK(shannon_bits(Counts{0, 5, 0}) == 0.0);
  CHECK(shannon_bits(Counts{0, 0}) == 0.0);
  CHECK(shannon_bits(Counts{1, 2}) == Approx(std::log2(3.0) - 2.0 / 3.0));
}

TEST_CASE("A code made for other counts costs their divergence more") {
  using Counts = std::vector<std::uint64_t>;
  CHECK(cross_bits(Counts{1, 1}, Counts{3, 1}) == Approx(0.5 * std::log2(4.0 / 3.0) + 0.5 * 2));
  CHECK(std::isinf(cross_bits(Counts{1, 1}, Counts{1, 0})));
}

TEST_CASE("Symbols are counted one by one") {
  const std::vector<std::uint8_t> codes = {3, 0, 3, 255};
  const auto counts = count_symbols(codes);
  CHECK(counts[3] == 2);
  CHECK(counts[0] == 1);
  CHECK(counts[255] == 1);
  CHECK(counts[1] == 0);
}
