#include "support/catch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvq/core/rng.h>

using namespace kvq;

TEST_CASE("The generator is the C++ standard's 64-bit Mersenne twister") {
  Rng rng(5489);
  std::uint64_t value = 0;
  for (int draw = 0; draw < 10000; ++draw) value = rng.next();
  CHECK(value == 9981545732273789042ull);  // [rand.predef]
}

TEST_CASE("The first draws of a seed are fixed") {
  // std::mt19937_64 of libstdc++ 12; artifacts depend on them.
  Rng rng(42);
  CHECK(rng.next() == 13930160852258120406ull);
  CHECK(rng.next() == 11788048577503494824ull);
  Rng again(42);
  CHECK(again.uniform() == Approx(0.755155532954539).epsilon(1e-14));
}

TEST_CASE("Bounded draws stay below the bound and are uniform") {
  for (std::uint64_t bound : {1ull, 2ull, 3ull, 10ull, 1000ull}) {
    Rng rng(7);
    std::vector<int> count(bound, 0);
    const int draws = 100000;
    for (int draw = 0; draw < draws; ++draw) {
      const std::uint64_t value = rng.below(bound);
      REQUIRE(value < bound);
      ++count[value];
    }
    // Pearson's chi-squared: mean bound - 1, standard deviation sqrt(2 (bound - 1)); six of these are never seen.
    const double expected = static_cast<double>(draws) / static_cast<double>(bound);
    double chi_squared = 0;
    for (int seen : count) chi_squared += (seen - expected) * (seen - expected) / expected;
    const double freedom = static_cast<double>(bound - 1);
    CHECK(chi_squared <= freedom + 6 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("Huge bounds are unbiased too") {
  // 3/4 of the range: taking the remainder of a 64-bit draw would give the lowest third twice as often.
  const std::uint64_t bound = 3ull << 62;
  Rng rng(1);
  int low = 0;
  for (int draw = 0; draw < 30000; ++draw) low += rng.below(bound) < (1ull << 62);
  CHECK(low > 9500);
  CHECK(low < 10500);
}

TEST_CASE("Uniform draws fill [0, 1) evenly") {
  Rng rng(3);
  double sum = 0, smallest = 1, largest = 0;
  for (int draw = 0; draw < 100000; ++draw) {
    const double value = rng.uniform();
    REQUIRE(value >= 0.0);
    REQUIRE(value < 1.0);
    sum += value;
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  CHECK(sum / 100000 == Approx(0.5).margin(0.006));
  CHECK(smallest < 1e-3);
  CHECK(largest > 1 - 1e-3);
}
