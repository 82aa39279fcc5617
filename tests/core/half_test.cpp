#include <cmath>
#include <cstring>
#include <limits>

#include "support/catch.h"

#include <kvq/core/half.h>

using namespace kvq;

TEST_CASE("Half round trip: every half value survives float and back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(half_to_float(float_to_half(value))));
    } else if (float_to_half(value) != half) {
      FAIL("half " << bits << " became " << float_to_half(value));
    }
  }
}

TEST_CASE("Half conversion agrees with the hardware's definition at the edges") {
  CHECK(float_to_half(65504.0f) == 0x7bff);
  CHECK(float_to_half(65519.996f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(0x1p-24f) == 0x0001);
  CHECK(float_to_half(0x1p-25f) == 0x0000);  // tie to even
  CHECK(float_to_half(std::nextafter(0x1p-25f, 1.0f)) == 0x0001);
  CHECK(float_to_half(1.0f + 0x1p-11f) == 0x3c00);  // tie to even
  CHECK(float_to_half(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(float_to_half(-0.0f) == 0x8000);
  CHECK(half_to_float(0x3555) == 0.333251953125f);
}
