// What tiers cost, beside what, and which caches cannot have them.

#include <c10/core/InferenceMode.h>

#include "cache/tiers_loop.h"

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Counted bits of tiers are what a plain count gives") {
  const std::vector<AttentionInput> text = random_text(10);
  const auto count = [&](const std::string& recipe) {
    SimulatedCache cache(tiered_quantizer(recipe), 2);
    for (int layer = 0; layer < kLayers; ++layer) run_in_pieces(cache, text[layer], kTokens);
    return cache.footprint();
  };
  // 149 tokens beside the sink: 38 at 4 bits, 37 at 3, 74 at 2: one page, one, and two.
  const Footprint layers = count("int4:mid=3,lo=2,newest=8");
  CHECK(layers.codes == kLayers * 64 * 2 * kWidth * (4 + 3 + 2 * 2) / 8);
  CHECK(layers.ranges == kLayers * 4 * 64 * 4);
  CHECK(layers.outliers == 0);
  CHECK(layers.exact == kLayers * 2 * kWidth * 2);
  CHECK(layers.tables == kLayers * 4 * 4);
  CHECK(layers.selection == kLayers * (149 * 4 + (38 + 37) * 4));  // the last tier's tokens stay there for good
  // With a way back, or out, all hold their weight.
  CHECK(count("int4:mid=3,lo=2,newest=8,hysteresis=50%").selection == kLayers * 149 * 8);
  CHECK(count("int4:mid=3,lo=2,newest=8,keep=80%").selection == kLayers * 120 * 8);
  // Each head its own pages, half as wide, and a copy of the range.
  const Footprint heads = count("int4:mid=3,lo=2,newest=8,per=head");
  CHECK(heads.codes == layers.codes);
  CHECK(heads.ranges == 2 * layers.ranges);
  CHECK(heads.tables == 2 * layers.tables);
  CHECK(heads.selection == 2 * layers.selection);
  CHECK(heads.exact == layers.exact);
  // What is forecast is what there is, where no outliers vary.
  const auto plain = tiered_quantizer("int4:mid=3,lo=2,newest=8,per=head");
  CHECK(forecast_footprint(*plain, kTokens) == heads);
  // The oracle has no weights to hold.
  CHECK(count("int4:mid=3,lo=2,by=window").selection == kLayers * 149 * 4);
}

TEST_CASE("Outliers of tiers are those of the same tokens in one tier") {
  // As many values stay exact as without tiers: what a tier changes is codes.
  const std::vector<AttentionInput> text = random_text(11);
  const auto quantizer = tiered_quantizer("nuq4-5%:lo=2,newest=8");
  SimulatedCache cache(quantizer, 2);
  for (int layer = 0; layer < kLayers; ++layer) run_in_pieces(cache, text[layer], kTokens);
  auto high = std::make_shared<Quantizer>(*quantizer), low = std::make_shared<Quantizer>(*quantizer);
  high->recipe = parse_recipe("nuq4-5%"), low->recipe = parse_recipe("nuq2-5%");
  for (LayerQuantizer& layer : high->layers) layer = {tier_side(layer.key, 0), tier_side(layer.value, 0)};
  for (LayerQuantizer& layer : low->layers) layer = {tier_side(layer.key, 1), tier_side(layer.value, 1)};
  // 38 of 149 tokens high: a page; 111 low: two. The outliers of three pages; overflow blocks depend on who is where.
  const Footprint footprint = cache.footprint();
  const auto page = [](const Quantizer& of) { return forecast_footprint(of, 1); };
  CHECK(footprint.codes == page(*high).codes + 2 * page(*low).codes);
  CHECK(footprint.ranges == 3 * page(*high).ranges);
  CHECK(footprint.outliers >= 3 * page(*high).outliers);
  CHECK(footprint.padding == page(*high).padding + 2 * page(*low).padding);
}

TEST_CASE("Tiers of heads are moved by several threads, in inference mode too") {
  const std::vector<AttentionInput> text = random_text(13);
  const auto quantizer = tiered_quantizer("adaptive:hi=4,lo=2,newest=4,per=head");
  SimulatedCache one(quantizer, 1);
  const at::Tensor expected = run_in_pieces(one, text[0], kTokens);
  const c10::InferenceMode inference;
  SimulatedCache two(quantizer, 2);
  CHECK(difference(run_in_pieces(two, text[0], 40), expected) == 0.0);
}

TEST_CASE("Caches that cannot have tiers say so") {
  const auto refusal = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto quantizer = tiered_quantizer("adaptive:hi=4,lo=2");
  CHECK(refusal([&] { make_cache(CacheKind::Packed, quantizer, 1); }).find("the packed cache cannot hold it") !=
        std::string::npos);
  CacheParts parts;
  parts.side = Side::Key;
  CHECK(refusal([&] { SimulatedCache(quantizer, 1, parts); }).find("one side of it is no cache") != std::string::npos);
  auto local = std::make_shared<Quantizer>(*quantizer);
  local->rope.is_local = {1, 0};
  local->rope.window = 16;
  CHECK(refusal([&] { SimulatedCache(local, 1); }).find("has tiers by attention") != std::string::npos);
  // Some layers only: the others are as they were.
  parts = {};
  parts.layers = {1};
  const std::vector<AttentionInput> text = random_text(12);
  auto none = std::make_shared<Quantizer>();
  none->recipe = parse_recipe("none");
  none->shape = quantizer->shape, none->rope = quantizer->rope;
  SimulatedCache some(quantizer, 1, parts), exact(none, 1), all(quantizer, 1);
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor result = run_in_pieces(some, text[layer], kTokens);
    CHECK((difference(result, run_in_pieces(exact, text[layer], kTokens)) == 0) == (layer == 0));
    CHECK((difference(result, run_in_pieces(all, text[layer], kTokens)) == 0) == (layer == 1));
  }
}
