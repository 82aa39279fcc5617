// Budgets, pooling and choices against numbers worked out by hand; counted bits of what is kept.

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/eviction.h>
#include <kvq/quant/eviction_footprint.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;
using kvq::test::refusal;

namespace {

EvictionRecipe eviction(const std::string& words) { return parse_recipe("none:" + words).eviction; }

Quantizer make_quantizer(const std::string& recipe, int layers, int kv_heads, int head_dim, double rate) {
  Quantizer quantizer;
  quantizer.recipe = parse_recipe(recipe);
  quantizer.shape = {layers, kv_heads, kv_heads, head_dim};
  if (!quantizer.recipe.quantized) return quantizer;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer.recipe.side(which);
    side.kv_heads = kv_heads, side.head_dim = head_dim;
    side.codebooks = {uniform_codebook(side.recipe.bits)};
    side.outlier_rate = rate;
  }
  quantizer.layers.assign(static_cast<std::size_t>(layers), layer);
  return quantizer;
}

}  // namespace

TEST_CASE("Eviction words reach their fields, with the papers' defaults") {
  const EvictionRecipe streaming = eviction("evict=first-recent,budget=256");
  CHECK(streaming.tokens == 256);
  CHECK(streaming.share == 0.0);
  CHECK(streaming.first == 4);
  CHECK(streaming.cache_positions);
  const EvictionRecipe h2o = eviction("evict=h2o,budget=20%");
  CHECK(h2o.share == 0.2);
  CHECK(h2o.tokens == 0);
  CHECK(h2o.heavy == 0.5);
  const EvictionRecipe snapkv = eviction("evict=snapkv,budget=1024");
  CHECK(snapkv.observe == 32);
  CHECK(snapkv.kernel == 7);
  CHECK(snapkv.pooling == Pooling::Max);
  CHECK(snapkv.beta == 0.0);
  const EvictionRecipe pyramid = eviction("budget=12.5%,evict=pyramidkv,beta=7.5,observe=16,pool=avg,kernel=5");
  CHECK(pyramid.share == 0.125);
  CHECK(pyramid.beta == 7.5);
  CHECK(pyramid.observe == 16);
  CHECK(pyramid.pooling == Pooling::Avg);
  CHECK(pyramid.kernel == 5);
  CHECK(eviction("evict=pyramidkv,budget=64").observe == 8);
  CHECK(eviction("evict=pyramidkv,budget=64").beta == 20.0);
  const Recipe both = parse_recipe("K=nuq4-1%:evict=h2o,budget=512/V=nuq2-1%");
  CHECK(both.eviction == parse_recipe("K=nuq4-1%/V=nuq2-1%:budget=512,evict=h2o").eviction);
  CHECK(both.eviction == parse_recipe("K=nuq4-1%:evict=h2o,budget=512/V=nuq2-1%:evict=h2o,budget=512").eviction);
  CHECK(both.eviction.rule == EvictionRule::H2o);
}

TEST_CASE("Recipes with eviction survive their short form, each with a slug of its own") {
  const char* const texts[] = {"none:evict=first-recent,budget=25%",
                               "none:evict=first-recent,budget=25%,first=1,positions=original",
                               "none:evict=h2o,budget=512",
                               "none:evict=h2o,budget=512,heavy=12.5%",
                               "none:evict=snapkv,budget=50%,observe=16,pool=avg,kernel=5",
                               "none:evict=pyramidkv,budget=100%,beta=7.5",
                               "nuq4-1%:evict=h2o,budget=512",
                               "nuq3-1%:sink=4,evict=snapkv,budget=50%",
                               "K=nuq4-1%:evict=h2o,budget=512/V=nuq2-1%",
                               "K=nuq4-1%:sink=2,evict=h2o,budget=33.3%/V=int4:value=token-group,group=64",
                               "kvq2:evict=pyramidkv,budget=256",
                               "q8_0:evict=first-recent,budget=256",
                               "atom4:evict=snapkv,budget=25%"};
  std::set<std::string> slugs;
  for (const char* text : texts) {
    const Recipe recipe = parse_recipe(text);
    CHECK(short_form(recipe) == text);
    CHECK(slug(recipe).find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
          std::string::npos);
    slugs.insert(slug(recipe));
    CHECK(recipe.evicts());
    CHECK_FALSE(recipe.is_baseline());
    CHECK_FALSE(packed_refusal(recipe).empty());
  }
  CHECK(slugs.size() == std::size(texts));
  CHECK(slug(parse_recipe(texts[0])) == "none_evict-first-recent_budget-25pct");
  CHECK(parse_recipe("none").is_baseline());
}

TEST_CASE("What eviction cannot mean is refused by name") {
  CHECK(refusal("none:evict=h3o,budget=5").find("first-recent, h2o, snapkv, pyramidkv") != std::string::npos);
  CHECK(refusal("none:evict=h2o").find("needs budget=") != std::string::npos);
  CHECK(refusal("none:budget=5").find("need evict=") != std::string::npos);
  CHECK(refusal("none:sink=4").find("none does not") != std::string::npos);
  CHECK(refusal("none:qnorm,evict=h2o,budget=5").find("'qnorm'") != std::string::npos);
  CHECK(refusal("none:").find("unknown word") != std::string::npos);
  CHECK(refusal("none:evict=h2o,budget=0").find("budget takes") != std::string::npos);
  CHECK(refusal("none:evict=h2o,budget=101%").find("100 %") != std::string::npos);
  CHECK(refusal("none:evict=h2o,budget=5,heavy=100%").find("heavy 100 %") != std::string::npos);
  CHECK(refusal("none:evict=h2o,budget=50,first=4").find("h2o has no first") != std::string::npos);
  CHECK(refusal("none:evict=snapkv,budget=50,heavy=50%").find("snapkv has no heavy") != std::string::npos);
  CHECK(refusal("none:evict=snapkv,budget=50,beta=20").find("snapkv has no beta") != std::string::npos);
  CHECK(refusal("none:evict=h2o,budget=50,positions=cache").find("h2o has no positions") != std::string::npos);
  CHECK(refusal("none:evict=first-recent,budget=50,observe=8").find("has no observe") != std::string::npos);
  CHECK(refusal("none:evict=first-recent,budget=4").find("needs 5 at least") != std::string::npos);
  CHECK(refusal("none:evict=snapkv,budget=31").find("needs 32 at least") != std::string::npos);
  CHECK(refusal("none:evict=snapkv,budget=64,kernel=4").find("odd numbers") != std::string::npos);
  CHECK(refusal("none:evict=snapkv,budget=64,observe=0").find("observe 0") != std::string::npos);
  CHECK(refusal("none:evict=pyramidkv,budget=64,beta=0.5").find("beta 0.5") != std::string::npos);
  CHECK(refusal("K=int4:evict=h2o,budget=5/V=int4:evict=h2o,budget=6").find("together") != std::string::npos);
  CHECK(refusal("kivi2:evict=h2o,budget=50").find("groups") != std::string::npos);
  CHECK(refusal("nuq3-1%:recent=16,evict=h2o,budget=50").find("recent=") != std::string::npos);
  CHECK(refusal("int4:range=window,evict=h2o,budget=50").find("oracle") != std::string::npos);
}

TEST_CASE("A share of the tokens is rounded up and never less than the rule needs") {
  const EvictionRecipe h2o = eviction("evict=h2o,budget=7%");
  CHECK(eviction_budget(h2o, 100) == 7);  // 0.07 · 100 is a hair more than 7
  CHECK(eviction_budget(h2o, 101) == 8);
  CHECK(eviction_budget(h2o, 1) == 1);
  CHECK(heavy_budget(h2o, 7) == 3);
  CHECK(heavy_budget(eviction("evict=h2o,budget=9,heavy=0%"), 9) == 0);
  CHECK(eviction_budget(eviction("evict=h2o,budget=512"), 100) == 100);
  CHECK(eviction_budget(eviction("evict=first-recent,budget=10%"), 20) == 5);
  CHECK(eviction_budget(eviction("evict=first-recent,budget=10%"), 3) == 3);
  CHECK(eviction_budget(eviction("evict=snapkv,budget=10%"), 100) == 32);
  CHECK(eviction_budget(EvictionRecipe{}, 100) == 100);
  for (std::int64_t length = 1; length < 500; ++length) {  // a cache never has to drop two tokens for one
    CHECK(eviction_budget(h2o, length) >= eviction_budget(h2o, length - 1));
    CHECK(eviction_budget(h2o, length) <= eviction_budget(h2o, length - 1) + 1);
  }
}

TEST_CASE("PyramidKV's budgets fall in equal steps from 2b - b/beta to b/beta") {
  const EvictionRecipe pyramid = eviction("evict=pyramidkv,budget=100");
  // b = 92: 179.4, 121.13, 62.87, 4.6; rounded down, two tokens are missing; the 8 observed ones on top.
  CHECK(prompt_budgets(pyramid, 4, 1000) == std::vector<std::int64_t>{188, 130, 70, 12});
  // 142 tokens are all that there is before the observed ones: 142, 108.67, 75.33, 42.
  CHECK(prompt_budgets(pyramid, 4, 150) == std::vector<std::int64_t>{150, 117, 83, 50});
  CHECK(prompt_budgets(pyramid, 4, 90) == std::vector<std::int64_t>(4, 90));
  CHECK(prompt_budgets(eviction("evict=pyramidkv,budget=100,beta=1"), 3, 1000) == std::vector<std::int64_t>(3, 100));
  CHECK(prompt_budgets(pyramid, 1, 1000) == std::vector<std::int64_t>{100});
  CHECK(prompt_budgets(eviction("evict=snapkv,budget=100"), 3, 1000) == std::vector<std::int64_t>(3, 100));
  const std::vector<std::int64_t> many = prompt_budgets(eviction("evict=pyramidkv,budget=25%"), 30, 1531);
  CHECK(std::accumulate(many.begin(), many.end(), std::int64_t{0}) == 30 * 383);
  CHECK(std::is_sorted(many.rbegin(), many.rend()));
}

TEST_CASE("Pooling looks at neighbours; choices take the earlier of equals") {
  const std::vector<float> scores = {0.1f, 0.5f, 0.2f, 0.9f, 0.05f, 0.3f};
  CHECK(pooled(scores, Pooling::Max, 3) == std::vector<float>{0.5f, 0.5f, 0.9f, 0.9f, 0.9f, 0.3f});
  const std::vector<float> mean = pooled(scores, Pooling::Avg, 3);
  const double expected[] = {0.2, 0.8 / 3, 1.6 / 3, 1.15 / 3, 1.25 / 3, 0.35 / 3};
  for (int index = 0; index < 6; ++index) CHECK(mean[index] == Approx(expected[index]));
  CHECK(pooled(scores, Pooling::Max, 1) == scores);
  CHECK(pooled(scores, Pooling::Max, 255) == std::vector<float>(6, 0.9f));
  CHECK(largest(scores, 3) == std::vector<std::int64_t>{1, 3, 5});
  CHECK(largest(std::vector<float>{1, 2, 2, 2, 1}, 2) == std::vector<std::int64_t>{1, 2});
  CHECK(largest(scores, 0).empty());
  CHECK(largest(scores, 6).size() == 6);
  CHECK(lightest(scores, 4) == 0);
  CHECK(lightest(std::vector<float>{3, 1, 2, 1}, 4) == 1);
}

TEST_CASE("A head's kept tokens in pages of its own, counted by hand") {
  const Quantizer quantizer = make_quantizer("nuq3-1%:evict=h2o,budget=128", 30, 3, 64, 0.0098);
  std::vector<std::int64_t> positions(128);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<KeptTokens> kept(30, KeptTokens(3, positions));
  kept[7][1].front() = 500;  // this head has dropped the sink
  std::sort(kept[7][1].begin(), kept[7][1].end());
  std::vector<std::uint32_t> outliers(30 * 2048 * 3, 0);
  for (int token = 64; token < 128; ++token) outliers[static_cast<std::size_t>((3 * 2048 + token) * 3 + 2)] = 1;
  const Footprint counted = kept_footprint(quantizer, 2048, kept, {outliers, outliers});
  const std::int64_t pages = 30 * 3 * 2;
  CHECK(counted.codes == pages * 2 * 64 * 64 * 3 / 8);
  CHECK(counted.ranges == pages * 64 * 4);
  // 40.1 outliers of keys and 42.7 of values are expected in a page: 48 entries of 30 bits, a count, a link.
  // Layer 3, head 2 has 64 in its second page, keys and values: two blocks more each.
  CHECK(counted.outliers == pages * 2 * (48 * 30 / 8 + 2 + 4) + 2 * 2 * 36);
  CHECK(counted.padding == pages * 12);  // 3700 bytes in 3712
  CHECK(counted.tables == pages * 4);
  CHECK(counted.exact == (30 * 3 - 1) * 2 * 64 * 2);
  CHECK(counted.selection == 30 * 3 * 128 * 8);  // position and weight

  const Footprint forecast = forecast_footprint(quantizer, 2048);
  CHECK(forecast.codes == counted.codes);
  CHECK(forecast.selection == counted.selection);
  CHECK(forecast.exact == 30 * 3 * 2 * 64 * 2);
  CHECK(forecast.outliers >= pages * 2 * (48 * 30 / 8 + 2 + 4));
}

TEST_CASE("Unquantized, a kept token takes its fp16 and its place in the list") {
  const Footprint snapkv = forecast_footprint(make_quantizer("none:evict=snapkv,budget=25%", 4, 2, 16, 0), 1000);
  CHECK(snapkv.exact == 4 * 2 * 250 * 2 * 16 * 2);
  CHECK(snapkv.selection == 4 * 2 * 250 * 4);
  CHECK(snapkv.total() == snapkv.exact + snapkv.selection);
  const Footprint streaming =
      forecast_footprint(make_quantizer("none:evict=first-recent,budget=25%", 4, 2, 16, 0), 1000);
  CHECK(streaming.total() == 4 * 2 * 250 * 2 * 16 * 2);
  const Footprint pyramid = forecast_footprint(make_quantizer("none:evict=pyramidkv,budget=25%", 4, 2, 16, 0), 1000);
  CHECK(pyramid.total() == snapkv.total());
}

TEST_CASE("Where all heads keep the same tokens these fill the usual pages") {
  const Quantizer all = make_quantizer("nuq3-1%", 2, 3, 64, 0.0098);
  const Quantizer streaming = make_quantizer("nuq3-1%:evict=first-recent,budget=320", 2, 3, 64, 0.0098);
  CHECK(forecast_footprint(streaming, 4096) == forecast_footprint(all, 320));
  std::vector<std::int64_t> positions = {0, 1, 2, 3};
  for (std::int64_t token = 4096 - 316; token < 4096; ++token) positions.push_back(token);
  const std::vector<std::uint32_t> none(2 * 4096, 0), none_of_few(2 * 320, 0);
  CHECK(kept_footprint(streaming, 4096, {{positions}, {positions}}, {none, none}) ==
        measured_footprint(all, 320, {none_of_few, none_of_few}));
}
