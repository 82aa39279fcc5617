// turbo as a recipe: words, what does not fit, counted bits, and the simulated cache.
#include <cmath>

#include "quant/codec_support.h"
#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_named.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>
#include <kvq/vector/turbo_codec.h>

using namespace kvq;
using kvq::test::codec_quantizer;
using kvq::test::refusal;

namespace {

std::vector<float> values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x;
  for (std::size_t index = 0; index < count; ++index)
    x.push_back(static_cast<float>(rng.uniform() + rng.uniform() - 1));
  return x;
}

}  // namespace

TEST_CASE("turbo is a recipe with words of its own, for each side by itself") {
  const Recipe recipe = parse_recipe("turbo3:rotation=hadamard,qjl,marginal=gauss,seed=7");
  for (const Side side : kSides) {
    CHECK(recipe.side(side).codebook == CodebookKind::Turbo);
    CHECK(recipe.side(side).bits == 3);
    CHECK(recipe.side(side).turbo.hadamard);
    CHECK(recipe.side(side).turbo.qjl);
    CHECK(recipe.side(side).turbo.marginal == Marginal::Gauss);
    CHECK(recipe.side(side).turbo.seed == 7);
  }
  CHECK(recipe.sinks == 0);  // a method of the literature, by name
  CHECK_FALSE(recipe.key.post_rope);
  CHECK(parse_recipe("turbo3:rope=post").key.post_rope);
  const Recipe both = parse_recipe("K=turbo3:qjl/V=turbo2:outlier-channels=16,outlier-bits=3");
  CHECK(both.key.turbo.qjl);
  CHECK_FALSE(both.value.turbo.qjl);
  CHECK(both.value.turbo.outlier_channels == 16);
  CHECK(both.value.turbo.outlier_bits == 3);
  CHECK(parse_recipe("K=turbo4/V=nuq2-1%").sinks == 1);
  for (const std::string text :
       {"turbo1", "turbo8", "turbo3:rotation=hadamard", "turbo3:qjl", "turbo3:marginal=gauss,seed=7",
        "K=turbo3/V=turbo2", "turbo2:outlier-channels=16,outlier-bits=3", "turbo2:norm=unbiased",
        "turbo2:norm=fit,sink=4", "turbo3:rope=post", "turbo3:recent=32", "turbo3:recent=32,flush=16,qjl",
        "K=turbo4:sink=1/V=nuq2-1%", "K=nuq3-1%:feedback/V=turbo2:qjl", "turbo3:evict=h2o,budget=25%",
        "K=turbo3:rotation=hadamard/V=turbo3:norm=fit"}) {
    INFO(text);
    const Recipe parsed = parse_recipe(text);
    INFO(short_form(parsed));
    CHECK(parse_recipe(short_form(parsed)) == parsed);
  }
  CHECK(short_form(parse_recipe("turbo3:seed=7,rotation=hadamard")) == "turbo3:rotation=hadamard,seed=7");
  CHECK(short_form(parse_recipe("turbo3:rotation=random,norm=exact,seed=0")) == "turbo3");
  CHECK(slug(parse_recipe("turbo2:outlier-channels=16,outlier-bits=3")) == "turbo2_outlier-channels-16_outlier-bits-3");
}

TEST_CASE("Words that do not go with turbo, or without it, are refused") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"turbo9", "known"},
      {"turbo", "known"},
      {"turbo3-1%", "fixed format"},
      {"turbo3:key=channel", "another axis"},
      {"turbo3:range=static", "another range"},
      {"turbo3:qnorm", "qnorm"},
      {"turbo3:share=head", "share"},
      {"turbo3:weights=none", "weights"},
      {"turbo3:feedback", "turbo"},
      {"turbo3:rotate=hadamard", "rotate="},
      {"turbo3:rotation=haar", "random, hadamard"},
      {"turbo3:marginal=flat", "sphere, gauss"},
      {"turbo3:norm=l1", "exact, fit, unbiased"},
      {"turbo3:qjl=on", "stands alone"},
      {"turbo3:seed=x", "takes a number"},
      {"turbo3:qjl,norm=fit", "qjl needs norm=exact"},
      {"turbo3:outlier-bits=4", "needs outlier-channels"},
      {"turbo3:outlier-channels=8", "needs outlier-bits"},
      {"turbo3:outlier-channels=8,outlier-bits=9", "1 to 8"},
      {"nuq3:qjl", "qjl is for turbo"},
      {"K=turbo3/V=int4:rotation=hadamard", "rotation=hadamard is for turbo"},
      {"nuq3:seed=4", "seed=4 is for turbo"},
      {"nuq3:quality=9", "outlier-channels=N"}};
  for (const auto& [text, part] : bad) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(part));
  }
  const auto shape_refusal = [](const std::string& text, int head_dim) -> std::string {
    try {
      check_shape(parse_recipe(text), 2, head_dim);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(shape_refusal("turbo3:rotation=hadamard", 80) == "accepted");
  CHECK_THAT(shape_refusal("turbo3:rotation=hadamard", 20), ContainsSubstring("rotation=random turns any number"));
  CHECK_THAT(shape_refusal("turbo3:outlier-channels=64,outlier-bits=4", 64), ContainsSubstring("2 at least"));
  CHECK(packed_refusal(parse_recipe("turbo3")).empty());
  CHECK_THAT(cuda_refusal(parse_recipe("K=nuq3/V=turbo3")),
             ContainsSubstring("--cache packed and --cache simulated do"));
}

TEST_CASE("turbo's bytes, counted by hand") {
  const KvShape shape = {2, 8, 8, 128};
  const auto bits = [&](const std::string& recipe, std::int64_t tokens) {
    return forecast_footprint(codec_quantizer(recipe, shape), tokens).bits_per_value(shape, tokens);
  };
  const double table = 8.0 * 4 / (2 * 64 * 1024);  // one entry of the block table per page
  CHECK(bits("turbo3", 4096) == Approx(3 + 16.0 / 128 + table));
  CHECK(bits("turbo3:rotation=hadamard,norm=fit", 4096) == Approx(3 + 16.0 / 128 + table));
  CHECK(bits("turbo3:qjl", 4096) == Approx(3 + 32.0 / 128 + table));
  CHECK(bits("turbo1:qjl", 4096) == Approx(1 + 16.0 / 128 + table));
  CHECK(bits("K=turbo3/V=turbo2", 4096) == Approx(2.5 + 16.0 / 128 + table));
  CHECK(bits("turbo2:outlier-channels=32,outlier-bits=4", 4096) == Approx(2.5 + 32.0 / 128 + table));
  CHECK(bits("turbo3:sink=1", 4096) == Approx(3 + 16.0 / 128 + table + 16.0 / 4096));
  // Heads of 64: 3 bits are 24 bytes and a norm of 2, 3.25 bits where the published package has 5.5.
  const KvShape narrow = {1, 1, 1, 64};
  const Footprint one = forecast_footprint(codec_quantizer("turbo3", narrow), 64);
  CHECK(one.codes == 2 * 64 * 24);
  CHECK(one.ranges == 2 * 64 * 2);
  // Odd heads: rows of 64 codes are whole bytes whatever their number.
  CHECK(forecast_footprint(codec_quantizer("turbo3", {1, 1, 1, 81}), 64).codes == 2 * 64 * 81 * 3 / 8);
  // Rotation and codebook once for either side, exponents in each layer.
  CHECK(table_bytes(codec_quantizer("turbo3", shape)) == 4 * (2 * (128 * 128 + 8) + 4));
  CHECK(table_bytes(codec_quantizer("turbo3:rotation=hadamard", shape)) == 4 * (2 * (128 + 8) + 4));
  CHECK(table_bytes(codec_quantizer("turbo3:qjl", shape)) == 4 * (2 * (2 * 128 * 128 + 4) + 4));
  CHECK(table_bytes(codec_quantizer("turbo2:outlier-channels=32,outlier-bits=4", shape)) ==
        4 * (2 * (96 * 96 + 4 + 32 * 32 + 16) + 2 * 2 * 8 * 32 + 4));
  // With eviction every head keeps its own norms.
  const Footprint kept = forecast_footprint(codec_quantizer("turbo3:qjl,evict=snapkv,budget=64", shape), 4096);
  CHECK(kept.ranges == 2LL * 8 * 64 * 2 * 4);
  CHECK(kept.codes == 2LL * 8 * 64 * 2 * 48);
}

TEST_CASE("The simulated cache gives back what the codec decodes, for each head with its own outlier channels") {
  const KvShape shape = {1, 2, 2, 16};
  for (const std::string recipe : {"turbo3", "turbo2:qjl", "turbo2:outlier-channels=4,outlier-bits=4"}) {
    const Quantizer quantizer = codec_quantizer(recipe, shape);
    const SideQuantizer& side = quantizer.layers[0].key;
    const SideSimulator simulator(side);
    const std::vector<float> x = values(150 * 32, 3);
    std::vector<float> whole = x, chunks = x;
    std::vector<std::uint32_t> counts(150, 7);
    simulator.round_trip(whole, 0, 2, counts);
    CHECK(counts == std::vector<std::uint32_t>(150, 0));
    for (int first = 0, count = 1; first < 150; first += count, count = std::min(count + 10, 150 - first))
      simulator.round_trip(std::span(chunks).subspan(static_cast<std::size_t>(first) * 32,
                                                     static_cast<std::size_t>(std::min(count, 150 - first)) * 32),
                           first, 1);
    INFO(recipe);
    CHECK(whole == chunks);
    for (int head = 0; head < 2; ++head) {
      const int n = side.recipe.turbo.outlier_channels;
      const TurboCodec codec(
          side.turbo, {side.outlier_channels.begin() + n * head, side.outlier_channels.begin() + n * (head + 1)}, 0);
      for (std::size_t token = 0; token < 150; ++token) {
        const std::vector<float> row(x.begin() + token * 32 + head * 16, x.begin() + token * 32 + (head + 1) * 16);
        std::vector<std::byte> bytes;
        codec.encode(row, bytes);
        std::vector<float> back(16);
        codec.decode(bytes, back);
        CHECK(
            std::equal(back.begin(), back.end(), whole.begin() + static_cast<std::ptrdiff_t>(token * 32 + head * 16)));
      }
    }
  }
}

TEST_CASE("A norm that does not fit names token and channel") {
  for (const std::string recipe : {"turbo3", "turbo3:outlier-channels=4,outlier-bits=4"}) {
    const SideSimulator simulator(codec_quantizer(recipe, {1, 2, 2, 16}).layers[0].value);
    std::vector<float> x = values(100 * 32, 4);
    x[77 * 32 + 16 + 5] = 1e6f;
    try {
      simulator.round_trip(x, 0, 2);
      FAIL("no error");
    } catch (const ExactOverflow& overflow) {
      CHECK(overflow.token == 77);
      CHECK(overflow.channel == 21);
      CHECK(overflow.value == 1e6f);
    }
  }
  SideQuantizer without = codec_quantizer("turbo3", {1, 2, 2, 16}).layers[0].key;
  without.turbo = nullptr;
  CHECK_THROWS_AS(SideSimulator(without), Error);
}
