#include <map>
#include <string>
#include <vector>

#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_named.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/side_shape.h>

using namespace kvq;
using kvq::test::refusal;

namespace {

/// All that a footprint asks of a quantizer.
Quantizer quantizer_of(const std::string& recipe, const KvShape& shape, double rate = 0.0) {
  Quantizer quantizer;
  quantizer.recipe = parse_recipe(recipe);
  quantizer.shape = shape;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer.recipe.side(which);
    side.kv_heads = shape.kv_heads, side.head_dim = shape.head_dim;
    side.outlier_rate = rate;
  }
  quantizer.layers.assign(static_cast<std::size_t>(shape.layers), layer);
  return quantizer;
}

}  // namespace

TEST_CASE("Methods of the literature are recipes like any other") {
  const std::vector<std::pair<std::string, std::string>> same = {
      {"kivi2",
       "K=int2:key=channel-group,group=32,rope=post,flush=128,sink=0/V=int2:value=token-group,group=32,recent=128"},
      {"kivi4:group=64,recent=256",
       "K=int4:key=channel-group,group=64,rope=post,flush=256,sink=0/V=int4:value=token-group,group=64,recent=256"},
      {"kivi2:recent=32", "K=int2:key=channel-group,rope=post,sink=0/V=int2:value=token-group,recent=32"},
      {"atom4", "int4:key=token-group,value=token-group,group=128,zero=integer,sink=0"},
      {"flexgen4", "int4:key=token-group,value=token-group,group=64,rope=post,sink=0"},
      {"q4_0:sink=0", "q4_0"},
      {"K=q8_0/V=q4_0", "K=q8_0:sink=0/V=q4_0"},
      {"K=kivi2/V=atom4", "K=kivi2:sink=0/V=atom4:sink=0"}};
  for (const auto& [name, long_form] : same) {
    INFO(name);
    CHECK(parse_recipe(name) == parse_recipe(long_form));
  }
  for (const std::string& name : named_methods()) {
    CHECK(short_form(parse_recipe(name)) == name);
    CHECK(slug(parse_recipe(name)) == name);
    CHECK(parse_recipe(name).sinks == (parse_recipe(name).key.codebook == CodebookKind::Vector ? 1 : 0));
  }
  CHECK(parse_recipe("q8_0").key.post_rope);
  CHECK_FALSE(parse_recipe("atom4").key.post_rope);
  CHECK(parse_recipe("K=q8_0/V=nuq3").sinks == 1);
  CHECK(parse_recipe("kivi2:sink=4").sinks == 4);
  CHECK(short_form(parse_recipe("int4:key=token-group,value=token-group,group=64,rope=post,sink=0")) == "flexgen4");
}

TEST_CASE("Short forms of groups, rules and exact windows leave defaults out and parse back") {
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"q4_0:sink=4", "q4_0:sink=4"},
      {"q4_0:rope=pre", "q4_0:rope=pre"},
      {"fp8:recent=64", "fp8:recent=64"},
      {"int4:key=token-group,group=32", "int4:key=token-group"},
      {"K=int4:key=channel-group,group=64,flush=64/V=int4", "int4:key=channel-group,group=64"},
      {"int4:key=channel-group,value=token-group,group=64", "int4:key=channel-group,value=token-group,group=64"},
      {"int4:key=channel-group,flush=128", "K=int4:key=channel-group,flush=128/V=int4"},
      {"K=int4:key=channel-group,flush=128/V=int4", "K=int4:key=channel-group,flush=128/V=int4"},
      {"nuq3-1%:rule=topk", "nuq3-1%:rule=topk"},
      {"nuq3-1%:value=token,rule=threshold", "nuq3-1%:rule=threshold"},
      {"nuq3-1%:key=token,rule=threshold,cap=2%", "nuq3-1%:key=token,cap=2%,rule=threshold"},
      {"K=nuq3/V=nuq3-1%:value=channel,cap=3%", "K=nuq3/V=nuq3-1%:value=channel,cap=3%"},
      {"nuq3:share=16", "nuq3:share=16"},
      {"nuq3-1%:recent=32,sink=4", "nuq3-1%:recent=32,sink=4"},
      {"K=nuq3/V=nuq3:range=static", "K=nuq3/V=nuq3:range=static"},
      {"nuq3:key=token,range=static", "nuq3:key=token,range=static"},
      {"int4:zero=half", "int4"},
      {"nuq2:rule=topk", ""}};
  std::map<std::string, std::string> slugs;
  for (const auto& [text, canonical] : forms) {
    INFO(text);
    if (canonical.empty()) {
      refusal(text);
      continue;
    }
    const Recipe recipe = parse_recipe(text);
    CHECK(parse_recipe(short_form(recipe)) == recipe);
    if (text != "int4:key=channel-group,flush=128") CHECK(short_form(recipe) == canonical);
    const auto [same, inserted] = slugs.emplace(slug(recipe), short_form(recipe));
    CHECK((inserted || same->second == short_form(recipe)));
  }
}

TEST_CASE("Every combination of axes, ranges, rules and windows survives the short form") {
  int valid = 0;
  std::map<std::string, std::string> slugs;
  const auto try_side = [&](Side which, const SideRecipe& side, int sinks) {
    Recipe recipe{true, default_side(Side::Key), default_side(Side::Value), sinks};
    recipe.side(which) = side;
    try {
      validate(recipe);
    } catch (const Error&) {
      return;
    }
    ++valid;
    INFO(short_form(recipe));
    if (!(parse_recipe(short_form(recipe)) == recipe)) FAIL(short_form(recipe));
    if (slugs.emplace(slug(recipe), short_form(recipe)).first->second != short_form(recipe)) FAIL(slug(recipe));
  };
  for (const Side which : kSides)
    for (const CodebookKind kind : {CodebookKind::Nuq, CodebookKind::Int, CodebookKind::Q4_0, CodebookKind::Fp8})
      for (const Axis axis : {Axis::Channel, Axis::Token, Axis::ChannelGroup, Axis::TokenGroup})
        for (const RangeKind range : {RangeKind::Static, RangeKind::Online, RangeKind::Window, RangeKind::None})
          for (const int group : {0, 16, 32})
            for (const double outliers : {0.0, 0.01})
              for (const OutlierRule rule : {OutlierRule::Usual, OutlierRule::Threshold, OutlierRule::TopK})
                for (const double cap : {0.0, 0.02})
                  for (const bool post : {false, true})
                    for (const bool integer_zero : {false, true})
                      for (const int recent : {0, 32})
                        for (const int flush : {0, 64})
                          for (const int share : {0, 8}) {
                            SideRecipe side = default_side(which);
                            if (which == Side::Value && recent != 0) continue;  // enough of them
                            side.codebook = kind, side.axis = axis, side.range = range, side.group = group;
                            if (kind == CodebookKind::Fp8) side.bits = 8;
                            side.outliers = outliers, side.rule = rule, side.cap = cap, side.post_rope = post;
                            side.integer_zero = integer_zero, side.recent = recent, side.flush = flush;
                            side.share = share ? Share::Channels : Share::Layer, side.share_channels = share;
                            try_side(which, side, post ? 1 : 0);
                          }
  CHECK(valid > 400);
}

TEST_CASE("Words that do not fit are refused with what would") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"int4:group=64", "channel-group or token-group"},
      {"int4:key=token-group,group=1", "2 to"},
      {"int4:key=token-group,group=x", "takes a number"},
      {"int4:key=channel-group,group=48", "pages hold 64"},
      {"int4:key=channel-group,flush=48", "multiple of group"},
      {"int4:key=channel-group,range=static", "axis channel"},
      {"int4:key=channel-group,range=window", "axis channel"},
      {"K=int4:range=online/V=int4", "channel-group"},
      {"int4:range=none", "fp8"},
      {"int4:rule=topk", "outliers"},
      {"int4-1%:rule=both", "threshold, topk"},
      {"nuq4:key=token,zero=integer", "int with range=online"},
      {"int4:zero=integer", "range=online"},
      {"int4:zero=float", "half, integer"},
      {"q4_0:key=token", "another axis"},
      {"q4_0:group=64", "another group"},
      {"q4_0-1%", "known"},
      {"q5_0", "known"},
      {"q4_0:share=head", "share"},
      {"fp8:qnorm", "qnorm"},
      {"fp8:range=online", "another range"},
      {"kivi9", "known"},
      {"kivi", "known"},
      {"kivi2-1%", "known"},
      {"kivi2:recent=100", "multiple of group"},
      {"kivi2:recent=0", "residual"},
      {"nuq3:recent=-1", "takes a number"},
      {"nuq3:recent=99999999", "takes a number"},
      {"nuq3:flush=0", "at least one"},
      {"nuq3:share=0", "number of channels"},
      {"nuq3-1%:cap=2%,rule=topk", "thresholds"},
      {"K=nuq3-1%/V=nuq3-1%:cap=2%", "thresholds"}};
  for (const auto& [text, part] : bad) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(part));
  }
}

TEST_CASE("Block-Fisher rounding goes with exact windows, not with groups, rules and fixed formats") {
  for (const std::string text : {"kvq2:recent=64", "kvq1.5:flush=16,recent=32", "nuq3-1%:feedback,recent=32,sink=4",
                                 "K=nuq3-1%:feedback/V=kivi2", "K=kivi2/V=kvq3", "nuq3:key=token,range=static,icm=2",
                                 "nuq3:value=token-group,clip=0.9"}) {
    INFO(text);
    const Recipe recipe = parse_recipe(text);
    CHECK(parse_recipe(short_form(recipe)) == recipe);
  }
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"kivi2:feedback", "one by one"},
      {"atom4:icm=2", "one by one"},
      {"q4_0:feedback", "one by one"},
      {"fp8:icm=1", "one by one"},
      {"fp8:rotate=hadamard", "one by one"},
      {"q8_0:clip=0.9", "fit nothing"},
      {"q4_0:levels=20", "nuq"},
      {"kivi2:widths=pair", "widths=pair needs"},
      {"kivi2:rotate=hadamard", "one range per token"},
      {"kvq2:value=token-group", "one range per token"},
      {"kvq2:key=channel-group", "widths=pair needs"},
      {"kvq2:rule=topk", "one by one"},
      {"nuq3-1%:rule=threshold,feedback", "one by one"},
      {"nuq3:share=8,feedback", "one by one"},
      {"K=nuq3/V=nuq3:range=window,rotate=hadamard", "not window"},
      {"int4:key=token,range=window,feedback", "known before"}};
  for (const auto& [text, part] : bad) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(part));
  }
}

TEST_CASE("KIVI, Atom, FlexGen and llama.cpp's blocks, counted by hand") {
  const KvShape shape = {2, 8, 8, 128};  // width 1024
  const auto bits = [&](const std::string& recipe, std::int64_t tokens) {
    return forecast_footprint(quantizer_of(recipe, shape), tokens).bits_per_value(shape, tokens);
  };
  const double table = 8.0 * 4 / (2 * 64 * 1024);  // one entry of the block table per page
  CHECK(bits("q4_0", 4096) == Approx(4.5 + table));
  CHECK(bits("q8_0", 4096) == Approx(8.5 + table));
  CHECK(bits("fp8", 4096) == Approx(8.0 + table));
  CHECK(bits("flexgen4", 4096) == Approx(4 + 32.0 / 64 + table));
  CHECK(bits("atom4", 4096) == Approx(4 + 20.0 / 128 + table));
  CHECK(bits("atom3", 4096) == Approx(3 + 19.0 / 128 + table));
  CHECK(bits("int4:key=token,sink=0", 4096) == Approx(4 + 32.0 / 1024 + table));
  // 2 bits and a range of 32 bits per 32 values; 128 tokens of either side in fp16. Keys: all 4096 are quantized.
  // Values: 3968 are, in 62 pages of the 64 that the keys need.
  CHECK(bits("kivi2", 4096) == Approx(3.0 + table + 16.0 * 128 / 4096));
  CHECK(bits("kivi2", 4096 + 127) == Approx((3.0 + table) * 4096 / 4223 + 16.0 * 128 / 4223));  // 127 keys wait
  // Groups of more tokens than a page: their ranges lie apart, 4 bytes for each of 1024 channels.
  const Footprint large =
      forecast_footprint(quantizer_of("K=int2:key=channel-group,group=256,sink=0/V=q4_0", shape), 1000);
  CHECK(large.ranges == 2LL * (3 * 1024 * 4 + 16 * 64 * 32 * 2));  // 768 keys are quantized; values fill 16 pages
  CHECK(large.exact == 2LL * 256 * 1024 * 2);
  CHECK(large.codes == 2LL * 16 * 64 * 1024 * (2 + 4) / 8);
  // Outliers by group of tokens: 2 of 32 tokens in each channel, a value and the token's number.
  const Footprint topk =
      forecast_footprint(quantizer_of("K=int2-5%:key=channel-group,sink=0/V=int2", shape, 0.0625), 64);
  CHECK(topk.outliers == 2LL * 2 * 1024 * 2 * 3);
  // Thresholds beside online ranges: both are kept.
  const Footprint both =
      forecast_footprint(quantizer_of("K=int2-1%:key=token,rule=threshold,sink=0/V=int2", shape, 0.01), 64);
  CHECK(both.ranges == 2LL * 2 * 64 * 4);
  CHECK(both.outliers >= 2LL * (680 * 30 / 8 + 8 * 2 + 4));
  // A fixed number beside static ones: 10 a token of 30 bits, and counts.
  const Footprint fixed = forecast_footprint(quantizer_of("K=int2-1%:rule=topk,sink=0/V=int2", shape, 0.01), 64);
  CHECK(fixed.ranges == 2LL * 64 * 4);
  CHECK(fixed.outliers == 2LL * (64 * 10 * 30 / 8 + 8 * 2));
  // Recents take their room even where they are fewer.
  CHECK(forecast_footprint(quantizer_of("int4:recent=100,sink=2", shape), 50).codes == 0);
  CHECK(forecast_footprint(quantizer_of("int4:recent=100,sink=2", shape), 50).exact == 2LL * 2 * 102 * 1024 * 2);
}
