#include <kvq/quant/encode_loops.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

#include <kvq/core/rng.h>

using namespace kvq;

namespace {

std::vector<float> awkward_values(int count, Rng& rng) {
  const std::vector<float> special = {0.0f, -0.0f, 1e-40f, -1e-40f, 7e4f, -7e4f, 3e38f, -3e38f, 100.0f, 1e-6f};
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(rng.below(6) == 0 ? special[rng.below(special.size())]
                                       : static_cast<float>(rng.uniform() * 4.0 - 2.0));
  }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

/// The definitions, one value at a time. `volatile` keeps the compiler from anything but the written operations.
float rounded(float value) {
  volatile float stored = value;
  return stored;
}

void check_level(const EncodeLoops& loops, int count, Rng& rng) {
  const std::vector<float> x = awkward_values(count, rng), zero = awkward_values(count, rng),
                           factor = awkward_values(count, rng);
  std::vector<float> out(count), expected(count);
  for (int c = 0; c < count; ++c) expected[c] = rounded(rounded(x[c] - zero[c]) * factor[c]);
  loops.normalise_channels(x.data(), zero.data(), factor.data(), count, out.data());
  REQUIRE(same_bits(out, expected));
  for (int c = 0; c < count; ++c) expected[c] = rounded(rounded(x[c] - 0.3f) * 1.7f);
  loops.normalise_token(x.data(), 0.3f, 1.7f, count, out.data());
  REQUIRE(same_bits(out, expected));

  std::vector<std::uint8_t> codes(count), expected_codes(count);
  for (int bits = 1; bits <= 8; ++bits) {
    std::vector<float> boundaries((1u << bits) - 1), decoded(1u << bits);
    for (float& value : boundaries) value = static_cast<float>(rng.uniform() * 4.0 - 2.0);
    if (bits > 2) boundaries[1] = boundaries[2] = x[0];  // ties and repeated boundaries
    std::sort(boundaries.begin(), boundaries.end());
    for (float& value : decoded) value = static_cast<float>(rng.uniform());
    for (int c = 0; c < count; ++c) {
      expected_codes[c] = static_cast<std::uint8_t>(
          std::count_if(boundaries.begin(), boundaries.end(), [&](float boundary) { return boundary < x[c]; }));
    }
    loops.assign_codes(x.data(), count, boundaries.data(), bits, codes.data());
    REQUIRE(codes == expected_codes);
    for (int c = 0; c < count; ++c) expected[c] = rounded(zero[c] + rounded(factor[c] * decoded[codes[c]]));
    loops.decode_channels(codes.data(), count, decoded.data(), zero.data(), factor.data(), out.data());
    REQUIRE(same_bits(out, expected));
    for (int c = 0; c < count; ++c) expected[c] = rounded(0.3f + rounded(1.7f * decoded[codes[c]]));
    loops.decode_token(codes.data(), count, decoded.data(), 0.3f, 1.7f, out.data());
    REQUIRE(same_bits(out, expected));
  }

  std::vector<std::uint8_t> mask(count), expected_mask(count);
  std::vector<float> upper = zero;
  for (float& value : upper) value += 0.5f;
  for (int c = 0; c < count; ++c) expected_mask[c] = x[c] < zero[c] || x[c] > upper[c];
  REQUIRE(loops.mark_outside(x.data(), zero.data(), upper.data(), count, mask.data()) ==
          std::count(expected_mask.begin(), expected_mask.end(), 1));
  REQUIRE(mask == expected_mask);

  std::vector<std::int32_t> keys(count), copy(count);
  loops.order_keys(x.data(), count, keys.data(), copy.data());
  REQUIRE(keys == copy);
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if ((x[a] < x[b]) != (keys[a] < keys[b])) FAIL(x[a] << " and " << x[b] << " are ordered wrongly");
    }
  }
  const auto largest = std::max_element(keys.begin(), keys.end());
  CHECK(loops.largest(keys.data(), count) == *largest);
  CHECK(loops.smallest(keys.data(), count) == *std::min_element(keys.begin(), keys.end()));
  CHECK(loops.first_equal(keys.data(), count, *largest) == largest - keys.begin());
}

}  // namespace

TEST_CASE("Loops of every instruction set give the bits of their definitions, at lengths around vector widths") {
  Rng rng(7);
  for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best_simd_level()) continue;  // this CPU cannot run it
    INFO("level " << static_cast<int>(level));
    for (const int count : {1, 3, 7, 8, 15, 16, 17, 31, 33, 64, 80, 100, 129, 192})
      check_level(encode_loops(level), count, rng);
  }
}
