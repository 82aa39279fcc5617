#include <kvq/quant/scaled_half.h>

#include <cmath>
#include <limits>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>

using namespace kvq;

TEST_CASE("Ordinary magnitudes need no exponent") {
  for (const float largest : {0.0f, 0.0625f, 1.0f, 30.0f, 4096.0f}) CHECK(choose_exponent(largest) == 0);
}

TEST_CASE("Small and large data keep fp16's precision, with headroom") {
  for (const float largest : {1e-30f, 1e-6f, 0.06f, 5000.0f, 7e4f, -0.0f + 1e30f}) {
    const float unit = power_of_two(choose_exponent(largest));
    for (const float part : {1.0f, 0.7f, 1e-3f, 31.0f}) {
      const float value = largest * part;
      const float restored = half_to_float(float_to_half(value / unit)) * unit;
      CHECK(restored == Approx(value).epsilon(0x1p-11));
    }
  }
}

TEST_CASE("The largest magnitude must be a number") {
  CHECK_THROWS_AS(choose_exponent(std::nanf("")), Error);
  CHECK_THROWS_AS(choose_exponent(std::numeric_limits<float>::infinity()), Error);
  CHECK_THROWS_AS(choose_exponent(-1.0f), Error);
}
