// Published caches against figures that we did not compute: scripts/reference/expected_methods.py.

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/block_formats.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>

using namespace kvq;

namespace {

constexpr int kHeads = 2, kHeadDim = 32, kWidth = kHeads * kHeadDim, kTokens = 64;

std::vector<float> golden(const std::string& name) {
  std::ifstream file(std::string(KVQ_SOURCE_DIR "/tests/golden/methods/") + name + ".f32", std::ios::binary);
  REQUIRE(file);
  std::vector<float> values(kTokens * kWidth);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  REQUIRE(file.gcount() == static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

SideQuantizer side_of(const std::string& recipe, Side which) {
  SideQuantizer side;
  side.recipe = parse_recipe(recipe).side(which);
  side.kv_heads = kHeads, side.head_dim = kHeadDim;
  if (!is_block_format(side.recipe.codebook)) side.codebooks = {uniform_codebook(side.recipe.bits)};
  return side;
}

std::vector<float> simulated(const std::string& recipe, Side which) {
  std::vector<float> x = golden("input");
  SideSimulator(side_of(recipe, which)).round_trip(x, 0, 2);
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == 0.0f && b[i] == 0.0f) continue;  // gguf gives -0 here and there
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("q4_0, q8_0 and fp8 give back what ggml and torch give back, bit for bit") {
  CHECK(same_bits(simulated("q4_0", Side::Key), golden("q4_0")));
  CHECK(same_bits(simulated("q8_0", Side::Value), golden("q8_0")));
  CHECK(same_bits(simulated("fp8", Side::Key), golden("fp8")));
  CHECK_FALSE(same_bits(golden("input"), golden("q8_0")));
}

TEST_CASE("KIVI, Atom and FlexGen are what their papers' formulas give") {
  struct Case {
    std::string name, recipe;
    Side side;
    int bits, group_channels, group_tokens;
  };
  const std::vector<Case> cases = {
      {"kivi2_key", "kivi2", Side::Key, 2, 1, 32},
      {"kivi4_key", "kivi4", Side::Key, 4, 1, 32},
      {"kivi2_value", "kivi2", Side::Value, 2, 32, 1},
      {"flexgen4", "flexgen4", Side::Key, 4, 64, 1},
      {"group48", "flexgen4:group=48", Side::Value, 4, 48, 1},
      {"atom4", "atom4:group=32", Side::Key, 4, 32, 1},
      {"atom2", "atom2:group=32", Side::Value, 2, 32, 1},
  };
  const std::vector<float> input = golden("input");
  for (const Case& one : cases) {
    INFO(one.name);
    const std::vector<float> expected = golden(one.name), result = simulated(one.recipe, one.side);
    // Ours stores centre and half width in fp16, they minimum and step: the same grid but for the rounding of these, so
    // a value near the middle of two levels may fall to the other one.
    int other_level = 0;
    double error = 0, expected_error = 0;
    for (int token = 0; token < kTokens; ++token) {
      for (int channel = 0; channel < kWidth; ++channel) {
        float least = INFINITY, most = -INFINITY;
        const int t0 = token / one.group_tokens * one.group_tokens;
        const int c0 = channel / one.group_channels * one.group_channels;
        for (int t = t0; t < t0 + one.group_tokens; ++t) {
          for (int c = c0; c < std::min(c0 + one.group_channels, kWidth); ++c) {
            least = std::min(least, input[t * kWidth + c]);
            most = std::max(most, input[t * kWidth + c]);
          }
        }
        const std::size_t at = static_cast<std::size_t>(token) * kWidth + channel;
        const double step = (most - least) / ((1 << one.bits) - 1);
        const double rounding = 2e-3 * std::max({std::abs(least), std::abs(most), most - least}) + 1e-6;
        const double difference = std::abs(result[at] - expected[at]);
        if (difference > rounding) ++other_level;
        if (difference > step + 2 * rounding)
          FAIL(token << " " << channel << ": " << result[at] << " " << expected[at]);
        error += std::pow(result[at] - input[at], 2);
        expected_error += std::pow(expected[at] - input[at], 2);
      }
    }
    CHECK(other_level < kTokens * kWidth / 50);
    CHECK(error == Approx(expected_error).epsilon(0.01));
    CHECK(error > 0);
  }
}

TEST_CASE("e4m3 rounds to nearest even, keeps subnormals and stops at 448") {
  const std::map<float, float> expected = {
      {0.0f, 0.0f},     {1.0f, 1.0f},         {1.0625f, 1.0f},      {1.1875f, 1.25f},      {-17.0f, -16.0f},
      {-19.0f, -20.0f}, {448.0f, 448.0f},     {460.0f, 448.0f},     {-7e4f, -448.0f},      {0x1p-9f, 0x1p-9f},
      {0x1p-10f, 0.0f}, {0x1.8p-9f, 0x1p-8f}, {0x1.1p-6f, 0x1p-6f}, {0x1.3p-6f, 0x1.4p-6f}};
  for (const auto& [x, rounded] : expected) {
    INFO(x);
    CHECK(round_to_e4m3(x) == rounded);
  }
  CHECK(std::signbit(round_to_e4m3(-1e-9f)));
}

TEST_CASE("A block whose scale does not fit fp16 is named; heads that blocks do not divide are refused") {
  std::vector<float> x(kWidth, 1.0f);
  x[40] = -6e5f;
  std::vector<float> row = x;
  CHECK_FALSE(block_round_trip(CodebookKind::Q4_0, row));
  row = x;
  CHECK(block_round_trip(CodebookKind::Q8_0, row));  // 6e5 / 127 fits
  std::vector<float> two(2 * kWidth, 1.0f);
  two[kWidth + 40] = -6e5f;
  try {
    SideSimulator(side_of("q4_0", Side::Key)).round_trip(two, 0, 1);
    FAIL("accepted");
  } catch (const ExactOverflow& overflow) {
    CHECK(overflow.token == 1);
    CHECK(overflow.channel == 40);
    CHECK(overflow.value == -6e5f);
  }
  std::vector<float> tiny(kWidth, 0.0f);
  tiny[3] = 1e-40f;  // its scale has no inverse
  for (const std::string kind : {"q4_0", "q8_0", "fp8"}) {
    row = tiny;
    SideSimulator(side_of(kind, Side::Value)).round_trip(row, 0, 1);
    for (const float value : row) CHECK(value == 0.0f);
  }
  SideQuantizer narrow = side_of("q4_0", Side::Key);
  narrow.head_dim = 80;
  CHECK_THROWS_AS(SideSimulator(narrow), Error);
  CHECK_THROWS_AS(check_shape(parse_recipe("q8_0"), 2, 80), Error);
  CHECK_NOTHROW(check_shape(parse_recipe("fp8"), 2, 80));
  CHECK_THROWS_AS(check_shape(parse_recipe("nuq3:share=48"), 2, 64), Error);
}

TEST_CASE("A calibrated range per token codes as the same range in every channel does, coordinate descent included") {
  const std::vector<float> x = golden("input");
  std::vector<EncodedTokens> encoded;
  for (const std::string recipe : {"K=nuq3-1%:icm=2/V=nuq3", "K=nuq3-1%:key=token,range=static,icm=2/V=nuq3"}) {
    SideQuantizer side = side_of(recipe, Side::Key);
    side.lower.assign(kWidth, -3.0f), side.upper.assign(kWidth, 5.0f);
    for (int head = 0; head < kHeads; ++head) {
      for (int a = 0; a < kHeadDim; ++a) {
        side.feedback.order.push_back(kHeadDim - 1 - a);
        for (int b = 0; b < kHeadDim; ++b)
          side.feedback.hessian.push_back(a == b ? 1.0f : 0.4f / (1 + std::abs(a - b)));
      }
    }
    SideEncoder(side).encode(x, encoded.emplace_back());
  }
  CHECK(encoded[0].codes == encoded[1].codes);
  CHECK(encoded[0].outlier_value == encoded[1].outlier_value);
  CHECK(encoded[0].outliers() > 0);
}
