// One scale for a row and one codebook: bytes by hand, levels against published values, damage.

#include <cmath>

#include <kvq/core/half.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/scalar_codec_fit.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Packed codes lie one behind the other, lowest bits first") {
  const std::vector<std::uint8_t> codes = {1, 2, 3, 4, 5, 6, 7, 0, 5};
  std::vector<std::byte> bytes;
  pack_bits(codes, 3, bytes);
  // 001 | 010<<3 | 011<<6 | 100<<9 | 101<<12 | 110<<15 | 111<<18 | 000<<21 = 0x1F58D1, then 101
  CHECK((bytes == std::vector<std::byte>{std::byte{0xd1}, std::byte{0x58}, std::byte{0x1f}, std::byte{0x05}}));
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::size_t count = 0; count < 20; ++count) {
      std::vector<std::uint8_t> some(count), back(count);
      for (std::size_t at = 0; at < count; ++at) some[at] = static_cast<std::uint8_t>((at * 37 + 11) % (1u << bits));
      bytes.clear();
      pack_bits(some, bits, bytes);
      CHECK(bytes.size() == packed_bytes(count, bits));
      unpack_bits(bytes, bits, back);
      CHECK(back == some);
    }
  }
  bytes = {std::byte{0x20}};
  std::vector<std::uint8_t> one(1);
  CHECK_THROWS_AS(unpack_bits(bytes, 5, one), Error);
}

TEST_CASE("A row is its scale and the codes of the nearest levels") {
  const ScalarCodec codec(4, RowScale::Max, {-1.0f, -0.25f, 0.25f, 1.0f});
  const std::vector<float> x = {4.0f, -0.5f, 0.0f, -3.0f};  // max 4: 1, -0.125, 0 (a tie, to the lower), -0.75
  const auto bytes = encoded(codec, x);
  CHECK((bytes == std::vector<std::byte>{std::byte{0x00}, std::byte{0x44}, std::byte{0x17}}));  // fp16 4.0; 3 1 1 0
  CHECK(decoded(codec, bytes, 4) == std::vector<float>{4.0f, -1.0f, -1.0f, -4.0f});

  const ScalarCodec by_norm(2, RowScale::Norm, {-0.8f, 0.6f});
  CHECK(restored(by_norm, std::vector<float>{3.0f, -4.0f}) == std::vector<float>{0.6f * 5.0f, -0.8f * 5.0f});
}

TEST_CASE("Codes are the nearest levels for every number of bits, by brute force") {
  const auto x = gaussian(64 * 32, 5);
  for (int bits = 1; bits <= 8; ++bits) {
    const auto levels = fit_scalar_levels(x, 32, RowScale::Max, bits);
    const ScalarCodec codec(32, RowScale::Max, levels);
    CHECK(codec.bits() == bits);
    std::vector<std::uint8_t> codes(32);
    for (std::size_t row = 0; row < 64; ++row) {
      const auto values = std::span<const float>(x).subspan(row * 32, 32);
      const float scale = half_to_float(codec.quantize(values, 0, codes));
      for (std::size_t channel = 0; channel < 32; ++channel) {
        double nearest = 1e300;
        for (const float level : levels)
          nearest = std::min(nearest, std::fabs(values[channel] / scale - static_cast<double>(level)));
        CHECK(std::fabs(values[channel] / scale - static_cast<double>(levels[codes[channel]])) <= nearest + 1e-6);
      }
    }
  }
}

TEST_CASE("Levels fitted to a normal distribution are those of Max 1960") {
  // J. Max, Quantizing for minimum distortion, table I: 4 levels ±0.4528, ±1.510, error 0.1175; 8 levels: 0.03454.
  constexpr int kDim = 512;  // the norm of a row is nearly constant
  const auto x = gaussian(kDim * 2000, 9);
  const double spread = std::sqrt(static_cast<double>(kDim));
  const auto levels = fit_scalar_levels(x, kDim, RowScale::Norm, 2);
  CHECK(levels[0] * spread == Approx(-1.510).margin(0.01));
  CHECK(levels[1] * spread == Approx(-0.4528).margin(0.01));
  CHECK(levels[3] * spread == Approx(1.510).margin(0.01));
  for (const auto& [bits, error] : {std::pair{2, 0.1175}, std::pair{3, 0.03454}, std::pair{4, 0.009497}}) {
    const ScalarCodec codec(kDim, RowScale::Norm, fit_scalar_levels(x, kDim, RowScale::Norm, bits));
    CHECK(squared_error(x, restored(codec, x)) / static_cast<double>(x.size()) == Approx(error).epsilon(0.01));
  }
}

TEST_CASE("Degenerate rows and samples are defined") {
  const std::vector<float> none;
  CHECK(fit_scalar_levels(none, 8, RowScale::Norm, 2) == std::vector<float>(4, 0.0f));
  const std::vector<float> equal(32, 0.5f);
  for (const RowScale scale : {RowScale::Max, RowScale::Norm}) {
    const ScalarCodec codec(8, scale, fit_scalar_levels(equal, 8, scale, 3));
    for (const float value : restored(codec, equal)) CHECK(value == Approx(0.5f).epsilon(1e-3));
    CHECK(restored(codec, std::vector<float>(8, 0.0f)) == std::vector<float>(8, 0.0f));
    CHECK(restored(codec, std::vector<float>(8, 1e-30f)) == std::vector<float>(8, 0.0f));
  }
}

TEST_CASE("Values that the format cannot hold are refused with row and channel") {
  const ScalarCodec codec(2, RowScale::Norm, {-0.5f, 0.5f});
  std::vector<std::byte> bytes;
  CHECK_THROWS_WITH(codec.encode(std::vector<float>{1, 2, 3, NAN}, bytes), ContainsSubstring("row 1, channel 1"));
  CHECK_THROWS_WITH(codec.encode(std::vector<float>{1, 2, -7e4f, 3}, bytes),
                    ContainsSubstring("row 1") && ContainsSubstring("channel 0") && ContainsSubstring("65504"));
}

TEST_CASE("Damaged rows are refused or decode to finite values") {
  const auto x = gaussian(3 * 10, 1);
  const ScalarCodec codec(10, RowScale::Max, {-0.9f, 0.0f, 0.9f});  // code 3 does not exist, 4 bits are padding
  const auto bytes = encoded(codec, x);
  std::vector<float> out(x.size());
  const int refused = damage_everywhere(bytes, [&](auto damaged) {
    codec.decode(damaged, out);
    for (const float value : out) REQUIRE(std::isfinite(value));
  });
  CHECK(refused >= static_cast<int>(bytes.size()) + 3 * 4);
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_THROWS_AS(codec.decode(longer, out), Error);
}
