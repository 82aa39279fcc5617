#include <kvq/kernels/reference/attention_reference.h>
#include <kvq/kernels/reference/page_reference.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/catch.h"

using namespace kvq;
using namespace kvq::reference;

namespace {

const OverflowBlocks kNoOverflow = [](std::uint32_t) -> const std::uint8_t* { return nullptr; };

}  // namespace

TEST_CASE("Halves have the values of IEEE 754") {
  CHECK(half_value(0x3c00) == 1.0);
  CHECK(half_value(0xc100) == -2.5);
  CHECK(half_value(0x7bff) == 65504.0);
  CHECK(half_value(0x0001) == std::ldexp(1.0, -24));
  CHECK(half_value(0x8400) == -std::ldexp(1.0, -14));
  CHECK(std::isinf(half_value(0x7c00)));
  CHECK(std::isnan(half_value(0x7c01)));
}

TEST_CASE("A page of 3-bit keys and 2-bit values, written by hand, is read") {
  // 1 kv head of 2 channels; keys with a range per channel, one entry of room for outliers (rounded up: 8); values with
  // a range per token and the largest and smallest of each token exact, which are all.
  Side key, value;
  key.shape = {1, 2, 3, false, 0, true, 8};
  value.shape = {1, 2, 2, true, 1, false, 0};
  const layout::PageLayout page = layout::page_layout(key.shape, value.shape);
  key.parts = page.key_parts, value.parts = page.value_parts;
  CHECK(page.value_parts.codes == 48);
  CHECK(page.value_parts.ranges == 48 + 32);
  CHECK(page.key_parts.outlier_counts == 80 + 256);
  CHECK(page.value_parts.outlier_counts == 338);
  CHECK(page.key_parts.overflow_link == 340);
  CHECK(page.key_parts.outlier_values == 344);
  CHECK(page.value_parts.outlier_values == 344 + 16);
  CHECK(page.key_parts.outlier_channels == 360 + 256);
  CHECK(page.value_parts.outlier_channels == 616 + 8);
  CHECK(page.key_parts.outlier_tokens == 624 + 128);
  CHECK(page.value_parts.outlier_tokens == 752 + 6);
  CHECK(page.used == 758 + 96);
  CHECK(page.bytes == 864);
  CHECK(layout::overflow_block(key.shape).bytes == 36);
  key.exponent = 1, value.exponent = -1;
  key.zero = {1.0, -1.0}, key.scale = {0.5, 2.0};
  key.decoded = {-7, -5, -3, -1, 1, 3, 5, 7};
  value.decoded = {-1, -0.25, 0.25, 1};

  std::vector<std::uint8_t> bytes(864), block(36);
  // Channel 0, tokens 0 to 3: codes 5, 0, 7, 6 = bits 101 000 111 110 from the lowest up: 110 111 000 101.
  bytes[0] = 0b11000101, bytes[1] = 0b1101;
  // Channel 1: codes 1, 2, 0, 3.
  bytes[24] = 0b00010001, bytes[25] = 0b0110;
  const auto put_half = [](std::uint8_t* at, std::uint16_t half) { std::memcpy(at, &half, 2); };
  // Token 1: channel 0 is 2 * 1.0; token 2: channel 1 is 2 * -2.5.
  put_half(&bytes[344], 0x3c00), put_half(&bytes[346], 0xc100);
  bytes[616] = 0, bytes[617] = 1;
  bytes[336] = 2, bytes[338] = 8;
  bytes[752] = 0b10000001;  // tokens 1 and 2, six bits each
  for (int token = 0; token < 4; ++token) {
    put_half(&bytes[360 + 4 * token], 0x4000), put_half(&bytes[362 + 4 * token], 0xc000);  // 2, -2: times 2^-1
    bytes[624 + 2 * token] = 0, bytes[625 + 2 * token] = 1;
  }
  bytes[758] = 0, bytes[759] = 0b00010000, bytes[760] = 0b00000100;           // 0, 0, 1, 1
  bytes[761] = 0b10000010, bytes[762] = 0b00110000, bytes[763] = 0b00001100;  // 2, 2, 3, 3
  CHECK(decode_page(bytes.data(), key, 4, kNoOverflow) == std::vector<double>{2.5, -11, 2, -7, 4.5, -5, 3.5, -3});
  CHECK(decode_page(bytes.data(), value, 2, kNoOverflow) == std::vector<double>{1, -1, 1, -1});

  // Without outliers of values: what the ranges say. Token 0: zero 1, scale 2; code 3 in channel 0, 1 in channel 1.
  Side plain = value;
  plain.shape.outliers_per_end = 0;
  put_half(&bytes[80], 0x4000), put_half(&bytes[82], 0x4400);
  bytes[48] = 3, bytes[48 + 16] = 1;
  CHECK(decode_page(bytes.data(), plain, 1, kNoOverflow) == std::vector<double>{3, 0.5});

  // Eight outliers fill the page, another goes to block 7: tokens 0, 0, 1, 1, 2, 2, 3, 3, 4.
  bytes[336] = 9;
  for (int byte = 0; byte < 6; ++byte) bytes[752 + byte] = bytes[758 + byte];
  for (int entry = 0; entry < 8; ++entry) {
    put_half(&bytes[344 + 2 * entry], static_cast<std::uint16_t>(0x3c00 + 0x400 * entry));  // 2^entry
    bytes[616 + entry] = std::vector<std::uint8_t>{0, 1, 0, 1, 0, 1, 0, 1}[entry];
  }
  put_half(block.data(), 0xbc00), block[16] = 1, block[24] = 4;
  bytes[340] = 7;
  std::vector<std::uint32_t> asked;
  const auto blocks = [&](std::uint32_t number) {
    asked.push_back(number);
    return block.data();
  };
  const std::vector<double> x = decode_page(bytes.data(), key, 6, blocks);
  CHECK(asked == std::vector<std::uint32_t>{7});
  for (int entry = 0; entry < 8; ++entry) CHECK(x[static_cast<std::size_t>(entry)] == 2 << entry);
  CHECK(x[8] == -2.5);  // no outlier: code 0
  CHECK(x[9] == -2);
  CHECK(x[10] == -2.5);
  CHECK(x[11] == -15);

  const std::uint8_t* pages[] = {bytes.data(), bytes.data()};
  const std::vector<std::uint16_t> exact = {0x3c00, 0x4000};
  const std::vector<double> two = decode_pages(pages, plain, 66, exact, kNoOverflow);
  REQUIRE(two.size() == 132);
  CHECK(two[0] == 0.5);
  CHECK(two[1] == 1.0);
  CHECK(two[128] == 3);
  CHECK(two[129] == 0.5);
}

TEST_CASE("Attention of two tokens, worked out by hand") {
  // head_dim 2, one pair of angle pi / 2 a position: the key of position 1 turns by a quarter, the query too.
  Rope rope{{std::acos(-1.0) / 2}};
  const Heads shape{2, 1, 2};
  const std::vector<double> keys = {1, 0, 0, 2}, values = {1, 2, 3, -4};
  // Query (0, 1) at position 1 becomes (-1, 0); key 0 stays (1, 0): score -1 / sqrt 2; key 1 (0, 2) becomes (-2, 0): 2
  // / sqrt 2.
  const double a = std::exp(-1 / std::sqrt(2.0)), b = std::exp(2 / std::sqrt(2.0));
  const std::vector<double> result = decode_attention(shape, std::vector<double>{0, 1, 0, 0}, keys, values, rope);
  CHECK(result[0] == Approx((a * 1 + b * 3) / (a + b)));
  CHECK(result[1] == Approx((a * 2 - b * 4) / (a + b)));
  CHECK(result[2] == Approx(2.0));
  CHECK(result[3] == Approx(-1.0));
  rope.keys_are_rotated = true;  // key 1 stays (0, 2)
  const double c = std::exp(0.0);
  const std::vector<double> post = decode_attention(shape, std::vector<double>{0, 1, 0, 0}, keys, values, rope);
  CHECK(post[0] == Approx((a * 1 + c * 3) / (a + c)));
  // Two queries: the first sees one token only.
  const std::vector<double> both =
      attention(shape, std::vector<double>{5, 5, 5, 5, 0, 1, 0, 0}, 0, keys, values, Rope{{std::acos(-1.0) / 2}});
  CHECK(both[0] == Approx(1.0));
  CHECK(both[3] == Approx(2.0));
  CHECK(both[4] == Approx(result[0]));
  CHECK(both[7] == Approx(result[3]));
}
