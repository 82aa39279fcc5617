// Words, limits and moves of tiers against numbers worked out by hand; codes that go down and come back.

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/quantizer.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/tier_coder.h>
#include <kvq/quant/tier_list.h>

using namespace kvq;
using kvq::test::refusal;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::int64_t> limits(const std::string& recipe, std::int64_t tokens) {
  return tier_limits(parse_recipe(recipe).tiers, tokens);
}

using Moves = std::vector<TierList::Move>;

}  // namespace

namespace kvq {

std::ostream& operator<<(std::ostream& out, const TierList::Move& move) {
  return out << move.position << ": " << move.from << " to " << move.to;
}

}  // namespace kvq

TEST_CASE("Tier words reach their fields, with defaults that depend on each other") {
  const Recipe plain = parse_recipe("adaptive");
  CHECK(plain.key.bits == 4);
  CHECK(plain.value.bits == 4);
  CHECK(plain.key.outliers == 0.01);
  CHECK(plain.sinks == 1);
  CHECK(plain.tiers.low == 2);
  CHECK(plain.tiers.mid == 0);
  CHECK(plain.tiers.high_share == 0.25);
  CHECK(plain.tiers.newest == 32);
  CHECK(plain.tiers.decay == 1.0);
  CHECK(!plain.tiers.hysteresis);
  CHECK(!plain.is_oracle());
  const Recipe full = parse_recipe(
      "adaptive:hi=5,mid=3,lo=1,hi-share=20%,mid-share=30%,keep=75%,newest=64,decay=0.95,hysteresis=50%,per=head,sink="
      "4");
  CHECK(full.key.bits == 5);
  CHECK(full.sinks == 4);
  CHECK(full.tiers == TierRecipe{1, 3, 0.2, 0.3, 0.75, 64, 0.95, 0.5, TierWeights::Past, true});
  const Recipe oracle = parse_recipe("adaptive:by=window,hi=4,lo=1");
  CHECK(oracle.is_oracle());
  CHECK(oracle.tiers.newest == 0);
  CHECK(parse_recipe("nuq4-1%:lo=2") == plain);
  CHECK(parse_recipe("K=nuq4-1%:lo=2/V=nuq4-1%") == plain);
  CHECK(parse_recipe("K=adaptive/V=nuq4-1%") == plain);
}

TEST_CASE("Short forms of recipes with tiers say the same again") {
  for (const std::string text :
       {"adaptive:hi=4,lo=2", "adaptive:hi=4,mid=3,lo=2",
        "adaptive:hi=8,mid=2,lo=1,hi-share=10%,mid-share=12.5%,keep=50%", "adaptive:hi=4,lo=2,by=window",
        "adaptive:hi=4,lo=2,decay=0.99,hysteresis=25%,per=head", "int4:lo=2,newest=1", "nuq4:lo=1",
        "K=nuq3-1%:lo=2/V=int3"}) {
    INFO(text);
    const Recipe recipe = parse_recipe(text);
    CHECK(short_form(recipe) == text);
    CHECK(parse_recipe(short_form(recipe)) == recipe);
  }
  CHECK(short_form(parse_recipe("nuq4-1%:lo=2,sink=4")) == "adaptive:sink=4,hi=4,lo=2");
  CHECK(parse_recipe("adaptive:sink=4,hi=4,lo=2") == parse_recipe("nuq4-1%:lo=2,sink=4"));
  CHECK(slug(parse_recipe("adaptive:hi=4,lo=2,hi-share=10%")) == "adaptive_hi-4_lo-2_hi-share-10pct");
}

TEST_CASE("Tiers that cannot be are refused by name") {
  const auto refused = [](const std::string& recipe, const std::string& part) {
    INFO(recipe << ": " << refusal(recipe));
    CHECK(contains(refusal(recipe), part));
  };
  refused("adaptive:hi=2,lo=4", "lo=4 must be less than the 2 bits");
  refused("adaptive:hi=4,lo=4", "lo=4 must be less than the 4 bits");
  refused("adaptive:hi=4,mid=4,lo=2", "mid=4 must lie between lo=2 and the 4 bits");
  refused("adaptive:hi=4,mid=1,lo=2", "mid=1 must lie between");
  refused("adaptive:hi=9", "hi takes bits, 1 to 8");
  refused("adaptive:lo=0", "lo takes bits, 1 to 8");
  refused("adaptive:hi-share=0%", "hi-share 0 %; above 0 %");
  refused("adaptive:hi-share=100%", "hi-share 100 %");
  refused("adaptive:hi-share=25", "hi-share takes a percentage such as 25%");
  refused("adaptive:mid-share=20%", "mid-share needs a middle tier");
  refused("adaptive:mid=3,hi-share=60%,mid-share=40%", "come to 100 %: nothing is left");
  refused("adaptive:keep=20%", "keep 20 %; more than the 25 %");
  refused("adaptive:keep=101%", "keep 101 %");
  refused("adaptive:decay=0", "decay 0; 1e-06 to 1");
  refused("adaptive:decay=1.5", "decay 1.5");
  refused("adaptive:decay=x", "decay takes a number");
  refused("adaptive:newest=0", "newest 0; 1 to");
  refused("adaptive:hysteresis=1", "hysteresis takes a percentage");
  refused("adaptive:by=future", "by can be: past, window");
  refused("adaptive:per=token", "per can be: layer, head");
  for (const char* word : {"newest=8", "decay=0.9", "hysteresis=5%", "keep=90%"})
    refused(std::string("adaptive:by=window,") + word, "it has no " + std::string(word, std::string(word).find('=')));
  refused("adaptive:high=4", "unknown word 'high=4'");
  refused("nuq4-1%:hi=4,lo=2", "hi= is for adaptive");
  refused("nuq4-1%:hi-share=20%", "need lo=");
  refused("none:lo=2", "says how to quantize, but none does not");
  refused("adaptive:evict=h2o,budget=20%", "what drops the last of the tiers is keep=F%");
  refused("adaptive:recent=64", "let tokens wait");
  refused("adaptive:flush=64", "let tokens wait");
  refused("kivi4:lo=2", "let tokens wait");
  refused("int4:key=token-group,lo=2", "groups of channels");
  refused("int4:key=token,zero=integer,lo=2,range=online", "zero=");
  refused("adaptive:rule=topk", "rule=");
  refused("adaptive:range=window", "range=window is an oracle of its own");
  refused("kvq3:lo=2", "kvq2 and the like");
  refused("adaptive:feedback", "re-encoding would undo");
  refused("nuq4:levels=20,lo=2", "more than bits");
  refused("turbo4:lo=2", "turbo has no codes that a table");
  refused("scalar4:lo=2", "scalar4 has no codes");
  refused("q8_0:lo=2", "q8_0 has no codes");
  refused("K=nuq4-1%:lo=2/V=nuq3-1%", "here are 4 and 3");
  refused("K=adaptive:hi=4/V=adaptive:hi=3", "stand in one side, or alike in both");
  CHECK(contains(packed_refusal(parse_recipe("adaptive")), "the packed cache cannot hold it"));
  CHECK(contains(cuda_refusal(parse_recipe("adaptive")), "the packed cache cannot hold it"));
}

TEST_CASE("Limits of tiers by hand") {
  using List = std::vector<std::int64_t>;
  CHECK(limits("adaptive", 0) == List{0, 0});
  CHECK(limits("adaptive", 10) == List{10, 10});  // the newest 32
  CHECK(limits("adaptive", 100) == List{32, 100});
  CHECK(limits("adaptive", 1001) == List{251, 1001});
  CHECK(limits("adaptive:mid=3,hi-share=7%,mid-share=23%", 100) == List{32, 32, 100});
  CHECK(limits("adaptive:mid=3,hi-share=7%,mid-share=23%,newest=1", 100) == List{7, 30, 100});
  CHECK(limits("adaptive:keep=60%,newest=1", 99) == List{25, 60});
  CHECK(limits("adaptive:by=window", 10) == List{3, 10});
  for (const char* recipe : {"adaptive:mid=3,hi-share=7%,mid-share=23%,keep=61%,newest=13", "adaptive:hi-share=99%"}) {
    List before = limits(recipe, 0);
    for (std::int64_t tokens = 1; tokens < 500; ++tokens) {
      const List now = limits(recipe, tokens);
      for (std::size_t tier = 0; tier < now.size(); ++tier) {
        REQUIRE(now[tier] - before[tier] >= 0);
        REQUIRE(now[tier] - before[tier] <= 1);
        REQUIRE((tier == 0 || now[tier] >= now[tier - 1]));
      }
      before = now;
    }
  }
  CHECK(nominal_bits(parse_recipe("adaptive:hi=4,lo=2")) == 2.5);
  CHECK(nominal_bits(parse_recipe("adaptive:hi=4,mid=3,lo=1,keep=75%")) == 2.0);
}

TEST_CASE("Moves by hand: the lightest that is not among the newest, of equal ones the earlier") {
  // One sink, half of the rest high, the newest stays there.
  TierList list(parse_recipe("adaptive:hi=4,lo=2,hi-share=50%,newest=1,decay=0.5").tiers, 1);
  CHECK(list.append().empty());
  list.add(std::vector<float>{1.0f});
  CHECK(list.tier(0) == TierList::kExact);
  CHECK(list.append().empty());  // 1 token: limit 1
  list.add(std::vector<float>{0.5f, 0.5f});
  CHECK(list.append() == Moves{{1, 0, 1}});  // 2 tokens: limit 1
  list.add(std::vector<float>{0.5f, 0.25f, 0.25f});
  CHECK(list.append().empty());  // 3: limit 2
  list.add(std::vector<float>{0.5f, 0.25f, 0.125f, 0.125f});
  // Weights: 1: (0.25 + 0.25) / 2 + 0.25, below already; 2: 0.125 + 0.125 = 0.25; 3: 0.125.
  CHECK(list.append() == Moves{{3, 0, 1}});
  CHECK(list.positions() == std::vector<std::vector<std::int64_t>>{{2, 4}, {1, 3}});
  list.add(std::vector<float>{0.5f, 0.1f, 0.1f, 0.1f, 0.2f});
  CHECK(list.append().empty());  // 5: limit 3
  list.add(std::vector<float>(6, 0.0f));
  // 2: 0.225 / 2, 4: 0.2 / 2, 5: 0.
  CHECK(list.append() == Moves{{5, 0, 1}});

  TierList equal(parse_recipe("adaptive:hi=4,lo=2,hi-share=50%,newest=1,sink=0").tiers, 0);
  for (int token = 0; token < 3; ++token) equal.append();
  equal.add(std::vector<float>(3, 0.5f));
  CHECK(equal.append() == Moves{{1, 0, 1}});  // 0 went before; 1 and 2 are alike
}

TEST_CASE("Moves by hand: down a tier, out, and back with hysteresis") {
  const TierRecipe tiers =
      parse_recipe("adaptive:hi=4,mid=3,lo=2,hi-share=25%,mid-share=25%,keep=75%,newest=1,sink=0,hysteresis=100%")
          .tiers;
  TierList list(tiers, 0);
  // Limits of 1 to 5 tokens: 1 1 1, 1 1 2, 1 2 3, 1 2 3, 2 3 4.
  CHECK(list.append().empty());
  list.add(std::vector<float>{1.0f});
  CHECK(list.append() == Moves{{0, 0, 1}, {0, 1, 2}});  // no way back: 1 is the newest, and the middle is empty
  list.add(std::vector<float>{0.5f, 0.5f});
  // 1 goes to the middle; 0 below it weighs 1.5, more than twice 0.5, and takes its place.
  CHECK(list.append() == Moves{{1, 0, 1}, {1, 1, 2}, {0, 2, 1}});
  list.add(std::vector<float>{0.5f, 0.25f, 0.25f});
  // 2 goes to the middle, is lighter than 0 there and than 1 in the last tier, and is one too many: out.
  CHECK(list.append() == Moves{{2, 0, 1}, {2, 1, 2}, {2, 2, 3}});
  CHECK(list.dropped(2));
  CHECK(list.positions() == std::vector<std::vector<std::int64_t>>{{3}, {0}, {1}});
  list.add(std::vector<float>{0.5f, 0.5f, 0.0f, 0.0f});
  // Two may be high: 4 and 3, which is not among the newest and weighs nothing, while 0 weighs 2.5.
  CHECK(list.append() == Moves{{3, 0, 1}, {0, 1, 0}, {3, 1, 2}, {1, 2, 1}});
  CHECK(list.positions() == std::vector<std::vector<std::int64_t>>{{0, 4}, {1}, {3}});
}

TEST_CASE("A code that goes down and comes back is what the lower code says") {
  SideQuantizer side;
  side.recipe = default_side(Side::Key);
  side.recipe.bits = 3;
  side.recipe.outliers = 0.1;
  side.kv_heads = 2, side.head_dim = 8;
  side.lower.assign(16, -2.0f), side.upper.assign(16, 2.0f);
  const std::vector<float> high = {-1.0f, -0.7f, -0.4f, -0.1f, 0.1f, 0.3f, 0.6f, 1.0f}, low = {-0.6f, 0.5f};
  side.codebooks = {{high, high}};
  side.lower_tiers = {{1, {{low, low}}}};
  const TierCoder coder(side);
  CHECK(coder.tiers() == 2);
  std::vector<float> x(16), back(16), down(16);
  for (int i = 0; i < 16; ++i) x[static_cast<std::size_t>(i)] = -1.9f + 0.25f * static_cast<float>(i);
  x[5] = 7.5f;  // stays exact
  EncodedTokens token;
  coder.encode(x, 0, token);
  const EncodedTokens first = token;
  coder.recode(token, 0, 1, 0, 1);  // the first head only
  for (std::size_t i = 0; i < 16; ++i) {
    if (i >= 8) CHECK(token.codes[i] == first.codes[i]);
    if (i < 8 && i != 5) CHECK(token.codes[i] == (high[first.codes[i]] > -0.05f ? 1 : 0));
  }
  coder.decode(token, 0, 1, 1, std::span(down).first(8));
  coder.decode(token, 1, 1, 0, std::span(down).subspan(8));
  for (std::size_t i = 0; i < 8; ++i) CHECK(down[i] == (i == 5 ? 7.5f : 2.0f * low[token.codes[i]]));
  for (std::size_t i = 8; i < 16; ++i) CHECK(down[i] == 2.0f * high[first.codes[i]]);
  coder.recode(token, 0, 1, 1, 0);
  coder.decode(token, 0, 1, 0, std::span(back).first(8));
  // -0.6 is nearest to -0.7 and 0.5 to 0.6: two values are left of eight.
  const float returned = 0.6f;
  for (std::size_t i = 0; i < 8; ++i) {
    INFO(i);
    if (i == 5) CHECK(back[i] == 7.5f);
    if (i != 5) CHECK(back[i] == 2.0f * (high[first.codes[i]] < -0.05f ? -0.7f : returned));
  }
}

TEST_CASE("Tables of all tiers are counted") {
  SideQuantizer side;
  side.recipe = default_side(Side::Key);
  side.recipe.bits = 4;
  side.kv_heads = 1, side.head_dim = 8;
  side.lower.assign(8, -1.0f), side.upper.assign(8, 1.0f);
  side.codebooks = {uniform_codebook(4)};
  Quantizer quantizer{parse_recipe("nuq4:lo=2,mid=3"), {1, 1, 1, 8}, {}, {{side, side}}};
  const std::int64_t one = table_bytes(quantizer);
  for (SideQuantizer* each : {&quantizer.layers[0].key, &quantizer.layers[0].value})
    each->lower_tiers = {{3, {uniform_codebook(3)}}, {2, {uniform_codebook(2)}}};
  CHECK(table_bytes(quantizer) == one + 2 * (8 + 4) * 4);
}
