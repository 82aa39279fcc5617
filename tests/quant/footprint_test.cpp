#include <kvq/quant/footprint.h>

#include <cmath>
#include <vector>

#include "support/catch.h"

#include <kvq/core/rng.h>
#include <kvq/kernels/layout/packed_layout.h>
#include <kvq/quant/side_shape.h>

using namespace kvq;

namespace {

Quantizer make_quantizer(const std::string& recipe, int layers, int kv_heads, int head_dim, double key_rate) {
  Quantizer quantizer;
  quantizer.recipe = parse_recipe(recipe);
  quantizer.shape = {layers, kv_heads, kv_heads, head_dim};
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer.recipe.side(which);
    side.kv_heads = kv_heads, side.head_dim = head_dim;
    side.codebooks = {uniform_codebook(side.recipe.bits)};
    side.outlier_rate = key_rate;
    if (side.recipe.range == RangeKind::Static) {
      side.lower.assign(static_cast<std::size_t>(kv_heads) * head_dim, -1.0f);
      side.upper = side.lower;
    }
  }
  quantizer.layers.assign(static_cast<std::size_t>(layers), layer);
  return quantizer;
}

}  // namespace

TEST_CASE("SmolLM2's cache of 2048 tokens, counted by hand") {
  const Quantizer quantizer = make_quantizer("nuq3-1%", 30, 3, 64, 0.0098);
  // 32 pages. Key outliers: 0.0098 * 192 * 64 * 33 / 32 = 124.2 -> 128 entries. One page in every layer has 130: one
  // overflow block.
  std::vector<std::uint32_t> outliers(30 * 2048, 0);
  for (int layer = 0; layer < 30; ++layer) {
    for (int token = 0; token < 64; ++token) outliers[static_cast<std::size_t>(layer) * 2048 + 640 + token] = 2;
    outliers[static_cast<std::size_t>(layer) * 2048 + 640] = 4;
  }
  const std::vector<std::uint32_t> value_outliers(outliers.size(), 2);
  const Footprint counted = measured_footprint(quantizer, 2048, {outliers, value_outliers});
  CHECK(counted.codes == 30LL * 2 * 2048 * 192 * 3 / 8);
  CHECK(counted.ranges == 30LL * 2048 * 4);
  const std::int64_t key_page = 3 * 2 + 128 * 30 / 8 + 4;  // counts, entries, link
  CHECK(counted.outliers == 30LL * (32 * key_page + 36 + 32 * 3 * 2 + 2048 * 2 * 30 / 8));
  CHECK(counted.exact == 30LL * 2 * 192 * 2);
  CHECK(counted.padding == 0);  // 9216 + 256 + 12 + 4 + 2 * 128 * 30 / 8 = 10448 bytes
  CHECK(counted.tables == 30LL * 32 * 4);
  CHECK(counted.bits_per_value(quantizer.shape, 2048) == Approx(counted.total() * 8.0 / (2.0 * 30 * 192 * 2048)));
  CHECK(nominal_bits(quantizer.recipe) == 3.0);
  CHECK(table_bytes(quantizer) == 30LL * 4 * (2 * 192 + 8 + 8 + 2));
}

TEST_CASE("Eight kv heads of 128, a last page of one token, and other recipes, counted by hand") {
  const Quantizer quantizer = make_quantizer("K=nuq4-1%/V=nuq2-1%", 2, 8, 128, 0.01);
  std::vector<std::uint32_t> outliers(2 * 65, 0);
  outliers[64] = 1024;  // the last token of layer 0 is all outliers: (1024 - 680) / 8 = 43 overflow blocks
  const Footprint counted = measured_footprint(quantizer, 65, {outliers, std::vector<std::uint32_t>(2 * 65, 10)});
  CHECK(counted.codes == 2LL * (2 * 64 * 1024 * 4 / 8 + 2 * 64 * 1024 * 2 / 8));  // padding of the last page counts
  CHECK(counted.ranges == 2LL * 128 * 4);
  CHECK(counted.outliers == 2LL * (2 * (16 + 680 * 30 / 8 + 4 + 16) + 128 * 10 * 30 / 8) + 43 * 36);
  CHECK(counted.exact == 2LL * 2 * 1024 * 2);
  CHECK(counted.padding == 2LL * 2 * 6);  // 54394 bytes in 54400
  CHECK(counted.tables == 2LL * 2 * 4);
  CHECK(counted.total() == 2LL * 2 * (page_layout(quantizer.layers[0]).bytes + 4) + 43 * 36 + counted.exact);

  const Footprint per_token = forecast_footprint(make_quantizer("int4:key=token,sink=0", 1, 8, 128, 0.0), 64);
  CHECK(per_token.codes == 2LL * 64 * 1024 / 2);
  CHECK(per_token.ranges == 2LL * 64 * 4);
  CHECK(per_token.outliers == 0);
  CHECK(per_token.exact == 0);

  const Footprint none = forecast_footprint(make_quantizer("none", 2, 8, 128, 0.0), 65);
  CHECK(none.total() == fp16_bytes({2, 8, 8, 128}, 65));
  CHECK(none.bits_per_value({2, 8, 8, 128}, 65) == 16.0);
}

TEST_CASE("A key outlier at 1 % costs at most 34 bits at width 192 and 32 at 1024, slack and overflow included") {
  struct Case {
    int kv_heads, head_dim;
    double bits;
  };
  for (const auto& [kv_heads, head_dim, bits] : {Case{3, 64, 34.0}, Case{8, 128, 32.0}, Case{16, 64, 32.0}}) {
    const int width = kv_heads * head_dim;
    const Quantizer with = make_quantizer("nuq3-1%:value=channel", 1, kv_heads, head_dim, 0.01);
    constexpr std::int64_t kTokens = 32768;
    Quantizer keys_only = with;
    keys_only.layers[0].value.recipe.outliers = 0.0;
    const double expected = 0.01 * width * kTokens;
    CHECK(8.0 * forecast_footprint(keys_only, kTokens).outliers / expected <= bits);

    // Random tokens agree with the forecast.
    Rng rng(11);
    std::vector<std::uint32_t> outliers;
    double seen = 0;
    for (std::int64_t token = 0; token < kTokens; ++token) {
      std::uint32_t count = 0;
      for (int channel = 0; channel < width; ++channel) count += rng.below(100) == 0;
      outliers.push_back(count);
      seen += count;
    }
    const Footprint measured =
        measured_footprint(keys_only, kTokens, {outliers, std::vector<std::uint32_t>(kTokens, 0)});
    CHECK(8.0 * measured.outliers / seen <= bits);
    CHECK(measured.outliers == Approx(forecast_footprint(keys_only, kTokens).outliers).epsilon(0.005));
  }
}

TEST_CASE("Overflow blocks of values are counted as they were seen, too") {
  Quantizer quantizer = make_quantizer("nuq3-1%:value=channel", 1, 2, 64, 0.01);  // capacity 88 of 84.5
  const std::vector<std::uint32_t> none(100, 0);
  std::vector<std::uint32_t> some = none;
  const std::int64_t calm = measured_footprint(quantizer, 100, {none, none}).total();
  some[63] = 88;
  CHECK(measured_footprint(quantizer, 100, {none, some}).total() == calm);
  some[0] = 1;
  CHECK(measured_footprint(quantizer, 100, {none, some}).total() == calm + 36);
  some[64] = 104;
  CHECK(measured_footprint(quantizer, 100, {some, some}).total() == calm + 6 * 36);
}

TEST_CASE("Nominal 2 bits with 1 % outliers are about 2.4 counted at width 192") {
  const Quantizer quantizer = make_quantizer("nuq2-1%", 30, 3, 64, 0.01);
  const double bits = forecast_footprint(quantizer, 32768).bits_per_value(quantizer.shape, 32768);
  CHECK(bits > 2.30);
  CHECK(bits < 2.45);
}

TEST_CASE("Counts and channels of every head width can say that all are outliers") {
  for (const int head_dim : {1, 64, 80, 96, 100, 128, 255, 256, 512, 1023, 1024}) {
    CHECK(64LL * head_dim < 1LL << (8 * layout::outlier_count_bytes(head_dim)));
    CHECK(head_dim <= 1 << (8 * layout::outlier_channel_bytes(head_dim)));
  }
  CHECK(layout::outlier_page_capacity(0.0, 192) == 0);
  CHECK(layout::outlier_page_capacity(1e-9, 192) == 8);
  CHECK(layout::outlier_page_capacity(1.0, 2) == 136);
  CHECK(layout::overflow_blocks(128, 128) == 0);
  CHECK(layout::overflow_blocks(129, 128) == 1);
  CHECK(layout::overflow_blocks(137, 128) == 2);
}
