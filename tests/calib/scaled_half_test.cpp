#include <cmath>
#include <limits>
#include <random>

#include "support/catch.h"

#include <kvq/calib/scaled_half.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>

using namespace kvq;

TEST_CASE("Scaled halves keep 11 bits over nine orders of magnitude, wherever the tensor lies") {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> mantissa(1.0, 2.0), decades(-8.0, 0.0);
  for (const double largest : {1e-30, 1e-12, 1.0, 7e4, 3e38}) {
    std::vector<float> values(10000);
    for (float& value : values)
      value = static_cast<float>((random() % 2 ? -1 : 1) * largest * std::pow(10.0, decades(random)) *
                                 mantissa(random) / 2);
    values[77] = static_cast<float>(largest);
    const ScaledHalf scaled = to_scaled_half(values, "x", 2);
    int exponent = 0;
    CHECK(std::frexp(scaled.scale, &exponent) == 0.5f);  // a power of two
    float most = 0;
    for (std::size_t index = 0; index < values.size(); ++index) {
      const float half = half_to_float(scaled.values[index]);
      most = std::max(most, std::abs(half));
      if (std::abs(values[index]) < largest * 1e-8) continue;
      CHECK(half * scaled.scale == Approx(values[index]).epsilon(0x1p-10));
    }
    CHECK(most <= 32768.0f);
    CHECK(most >= 16384.0f);
  }
}

TEST_CASE("A tensor of zeros has scale 1; NaN and Inf are refused with their place") {
  const std::vector<float> zeros(100, 0.0f);
  CHECK(to_scaled_half(zeros, "x", 1).scale == 1.0f);
  CHECK(to_scaled_half(zeros, "x", 1).values == std::vector<std::uint16_t>(100, 0));
  std::vector<float> bad(600000, 1.0f);
  bad[500001] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(to_scaled_half(bad, "layer 3, key", 2),
                    ContainsSubstring("layer 3, key") && ContainsSubstring("nan at index 500001"));
  bad[500001] = -std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH(to_scaled_half(bad, "x", 2), ContainsSubstring("-inf"));
}
