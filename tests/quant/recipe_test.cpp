#include <kvq/quant/recipe.h>

#include <map>
#include <string>
#include <vector>

#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/recipe_words.h>

using namespace kvq;
using kvq::test::refusal;

TEST_CASE("A bare recipe has KVQuant's defaults") {
  const Recipe recipe = parse_recipe("nuq3-1%");
  CHECK(recipe.quantized);
  CHECK(recipe.sinks == 1);
  CHECK(recipe.key.axis == Axis::Channel);
  CHECK(recipe.key.range == RangeKind::Static);
  CHECK_FALSE(recipe.key.post_rope);
  CHECK(recipe.value.axis == Axis::Token);
  CHECK(recipe.value.range == RangeKind::Online);
  for (const Side side : kSides) {
    CHECK(recipe.side(side).codebook == CodebookKind::Nuq);
    CHECK(recipe.side(side).bits == 3);
    CHECK(recipe.side(side).outliers == 0.01);
    CHECK(recipe.side(side).weights == FitWeights::Fisher);
    CHECK(recipe.side(side).share == Share::Layer);
    CHECK_FALSE(recipe.side(side).qnorm);
  }
}

TEST_CASE("Words reach the fields they name") {
  const Recipe recipe = parse_recipe("nuq2-0.5%:qnorm,sink=4,share=head,weights=fisher-unscaled,cap=2%,rope=post");
  CHECK(recipe.sinks == 4);
  CHECK(recipe.key.outliers == 0.005);
  CHECK(recipe.key.cap == 0.02);
  CHECK(recipe.value.cap == 0.0);
  CHECK(recipe.key.post_rope);
  CHECK_FALSE(recipe.value.post_rope);
  for (const Side side : kSides) {
    CHECK(recipe.side(side).qnorm);
    CHECK(recipe.side(side).share == Share::Head);
    CHECK(recipe.side(side).weights == FitWeights::FisherUnscaled);
  }
  const Recipe per_token = parse_recipe("int4:key=token");
  CHECK(per_token.key.axis == Axis::Token);
  CHECK(per_token.key.range == RangeKind::Online);
  const Recipe oracle = parse_recipe("int3:range=window,value=channel");
  CHECK(oracle.key.range == RangeKind::Window);
  CHECK(oracle.value.range == RangeKind::Window);
  CHECK(parse_recipe("nf3:key-rope=post") == parse_recipe("nf3:rope=post"));
  CHECK(parse_recipe("nuq3-0%") == parse_recipe("nuq3"));
  CHECK(parse_recipe("int4:range=window").value.range == RangeKind::Online);
}

TEST_CASE("Each side can have a recipe of its own") {
  const Recipe recipe = parse_recipe("K=nuq3-1%:cap=3%/V=int2:sink=2");
  CHECK(recipe.key.codebook == CodebookKind::Nuq);
  CHECK(recipe.key.bits == 3);
  CHECK(recipe.key.cap == 0.03);
  CHECK(recipe.value.codebook == CodebookKind::Int);
  CHECK(recipe.value.outliers == 0.0);
  CHECK(recipe.sinks == 2);
  CHECK_THAT(refusal("K=nuq3:sink=1/V=nuq3:sink=2"), ContainsSubstring("agree"));
  CHECK_THAT(refusal("K=nuq3:value=channel/V=nuq3"), ContainsSubstring("value side"));
  CHECK_THAT(refusal("K=nuq3/V=nuq3:rope=post"), ContainsSubstring("key side"));
  CHECK_THAT(refusal("K=nuq3"), ContainsSubstring("K=…/V=…"));
  refusal("V=nuq3/K=nuq3");
  CHECK_THAT(refusal("K=none/V=nuq3"), ContainsSubstring("whole recipe"));
}

TEST_CASE("What is not a recipe is refused with what would be") {
  const std::vector<std::pair<std::string, std::string>> bad = {{"nuq9", "1 to 8"},
                                                                {"nuq0", "1 to 8"},
                                                                {"nuq", "nuqB"},
                                                                {"nuq33", "1 to 8"},
                                                                {"", "nuqB"},
                                                                {"turbo3000", "nuqB"},
                                                                {"nuq3-1", "percentage"},
                                                                {"nuq3-%", "percentage"},
                                                                {"nuq3--1%", "percentage"},
                                                                {"nuq3-1e0%", "percentage"},
                                                                {"nuq3-50%", "below 50"},
                                                                {"nuq3-1%%", "percentage"},
                                                                {"nuq3:", "known:"},
                                                                {"nuq3:sink", "0 to 16"},
                                                                {"nuq3:sink=17", "0 to 16"},
                                                                {"nuq3:sink=-1", "0 to 16"},
                                                                {"nuq3:sink=1x", "0 to 16"},
                                                                {"nuq3:sinks=1", "known:"},
                                                                {"nuq3:qnorm=1", "known:"},
                                                                {"nuq3:share=all", "layer, head"},
                                                                {"nuq3:weights=gradient", "fisher, fisher-unscaled"},
                                                                {"nuq3:key=row", "channel, token"},
                                                                {"nuq3:rope=both", "pre, post"},
                                                                {"nuq3:range=auto", "static, online, window"},
                                                                {"nuq3:sink=1,sink=1", "twice"},
                                                                {"nuq3:rope=post,key-rope=post", "twice"},
                                                                {"nuq3,sink=1", "bits"},
                                                                {"none:sink=1", "none does not"},
                                                                {"nuq3:cap=1%", "outliers"},
                                                                {"nuq3-1%:cap=0%", "above 0"}};
  for (const auto& [text, part] : bad) {
    INFO(text);
    const std::string message = refusal(text);
    CHECK_THAT(message, ContainsSubstring(part));
    CHECK_THAT(message, ContainsSubstring("'" + text));
  }
}

TEST_CASE("Contradictions are refused") {
  CHECK_THAT(refusal("nuq3:range=online"), ContainsSubstring("token"));
  CHECK_THAT(refusal("int3:qnorm"), ContainsSubstring("qnorm"));
  CHECK_THAT(refusal("nf3:share=head"), ContainsSubstring("share"));
  CHECK_THAT(refusal("int3:weights=none"), ContainsSubstring("weights"));
  CHECK_THAT(refusal("nuq3-1%:cap=1%,range=window"), ContainsSubstring("cap"));
  CHECK_THAT(refusal("nuq3-1%:cap=1%,key=token"), ContainsSubstring("cap"));
  Recipe bad = parse_recipe("nuq3");
  bad.value.post_rope = true;
  CHECK_THROWS_AS(validate(bad), Error);
  bad = parse_recipe("nuq3");
  bad.key.range = RangeKind::Online;
  CHECK_THROWS_AS(validate(bad), Error);
  bad = parse_recipe("nuq3");
  bad.sinks = 17;
  CHECK_THROWS_AS(validate(bad), Error);
}

TEST_CASE("The canonical form leaves defaults out, parses back, and its slug is a unique file name") {
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"none", "none"},
      {"nuq3-1%:sink=1", "nuq3-1%"},
      {"nuq3-1.0%:range=static,weights=fisher,share=layer,key=channel,value=token,rope=pre", "nuq3-1%"},
      {"int4:sink=0,key=token", "int4:key=token,sink=0"},
      {"K=nuq3-1%/V=nuq3-1%", "nuq3-1%"},
      {"K=nuq3-1%/V=nuq2-1%", "K=nuq3-1%/V=nuq2-1%"},
      {"K=nuq3-1%/V=nuq3-1%:sink=0", "nuq3-1%:sink=0"},
      {"K=nuq3:share=head/V=nuq3:sink=0", "K=nuq3:share=head,sink=0/V=nuq3"},
      {"nuq2-0.25%:qnorm,cap=0.5%", "nuq2-0.25%:cap=0.5%,qnorm"},
      {"nf3:range=window,key-rope=post", "nf3:rope=post,range=window"},
      {"K=int3:range=window/V=int3:value=channel", "K=int3:range=window/V=int3:value=channel"},
      {"nuq3-12.5%", "nuq3-12.5%"}};
  std::map<std::string, std::string> slugs;
  for (const auto& [text, canonical] : forms) {
    INFO(text);
    const Recipe recipe = parse_recipe(text);
    CHECK(short_form(recipe) == canonical);
    CHECK(parse_recipe(canonical) == recipe);
    const std::string name = slug(recipe);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
          std::string::npos);
    const auto [same, inserted] = slugs.emplace(name, canonical);
    CHECK((inserted || same->second == canonical));
  }
  CHECK(slug(parse_recipe("nuq3-0.5%:sink=4")) == "nuq3-0.5pct_sink-4");
}

TEST_CASE("The slug of a long recipe stays a file name, and differs where only its end differs") {
  const auto recipe = [](const std::string& tail) {
    return slug(
        parse_recipe("K=nuq2-0.125%:key=token-group,group=16,rope=post,weights=fisher-unscaled,recent=1024,sink=3/"
                     "V=nuq2-0.125%:value=token-group,group=48,weights=fisher-unscaled,share=head,qnorm,recent=" +
                     tail));
  };
  const std::string one = recipe("1023"), other = recipe("1022");
  CHECK(one.size() == 160);
  CHECK(one != other);
  CHECK(one.substr(0, 140) == other.substr(0, 140));
}

TEST_CASE("Every combination of fields survives the short form") {
  int valid = 0;
  std::map<std::string, int> slugs;
  for (const CodebookKind kind : {CodebookKind::Nuq, CodebookKind::Int})
    for (const double outliers : {0.0, 0.01})
      for (const Axis key_axis : {Axis::Channel, Axis::Token})
        for (const Axis value_axis : {Axis::Channel, Axis::Token})
          for (const RangeKind key_range : {RangeKind::Static, RangeKind::Online, RangeKind::Window})
            for (const RangeKind value_range : {RangeKind::Static, RangeKind::Online, RangeKind::Window})
              for (const bool post : {false, true})
                for (const double cap : {0.0, 0.02})
                  for (const Share value_share : {Share::Layer, Share::Head})
                    for (const bool qnorm : {false, true})
                      for (const int sinks : {0, 1}) {
                        Recipe recipe{true, default_side(Side::Key), default_side(Side::Value), sinks};
                        recipe.key.codebook = kind;
                        recipe.key.outliers = recipe.value.outliers = outliers;
                        recipe.key.axis = key_axis, recipe.value.axis = value_axis;
                        recipe.key.range = key_range, recipe.value.range = value_range;
                        recipe.key.post_rope = post, recipe.key.cap = cap;
                        recipe.value.share = value_share;
                        recipe.key.qnorm = recipe.value.qnorm = qnorm;
                        try {
                          validate(recipe);
                        } catch (const Error&) {
                          continue;
                        }
                        ++valid;
                        if (!(parse_recipe(short_form(recipe)) == recipe)) FAIL(short_form(recipe));
                        if (++slugs[slug(recipe)] > 1) FAIL(slug(recipe));
                      }
  CHECK(valid > 300);
}

TEST_CASE("Percentages are decimal, without a rounding error from the factor 100") {
  CHECK(format_percent(0.01) == "1");
  CHECK(format_percent(0.005) == "0.5");
  CHECK(format_percent(0.07) == "7");  // 100 * 0.07 is 7.000000000000001
  CHECK(format_percent(0.0) == "0");
  CHECK(format_percent(1e-7) == "0.00001");
  CHECK(format_percent(0.123456789) == "12.3456789");
  for (int step = 1; step < 5000; ++step) {
    const double fraction = step / 10000.0;
    if (*parse_percent(format_percent(fraction)) != fraction) FAIL(fraction);
  }
}
