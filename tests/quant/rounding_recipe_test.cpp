#include <kvq/quant/rounding_recipe.h>

#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_shape.h>

using namespace kvq;
using kvq::test::refusal;

TEST_CASE("kvq2 is what it says in full") {
  const Recipe recipe = parse_recipe("kvq2");
  CHECK(recipe == parse_recipe("K=nuq2-1%:widths=pair,feedback,icm=3,clip=0.9/"
                               "V=nuq2:levels=5,rotate=hadamard,feedback,icm=3,clip=0.9"));
  CHECK(parse_recipe("kvq1.5") == parse_recipe("K=nuq1.5-1%:widths=pair,feedback,icm=3,clip=0.9/"
                                               "V=nuq1:levels=3,rotate=hadamard,feedback,icm=3,clip=0.9"));
  CHECK(code_levels(parse_recipe("kvq3").value) == 10);
  CHECK(code_levels(parse_recipe("kvq4").value) == 20);
  CHECK(recipe.sinks == 1);
  CHECK(nominal_bits(recipe) == Approx(0.5 * (2 + 7.0 / 3)));
  CHECK(nominal_bits(parse_recipe("kvq1.5")) == Approx(0.5 * (1.5 + 5.0 / 3)));
}

TEST_CASE("Recipes with feedback keep their meaning through the short form") {
  for (const std::string text : {"kvq1.5",
                                 "kvq2",
                                 "kvq3:sink=4",
                                 "kvq4",
                                 "kvq2:icm=0",
                                 "kvq2:widths=flat,levels=4,clip=1",
                                 "kvq3:rotate=none,damp=10%",
                                 "K=kvq2/V=nuq2-1%",
                                 "K=nuq2-1%/V=kvq3:order=ascending",
                                 "nuq2-1%:feedback",
                                 "nuq3-1%:icm=2,order=natural",
                                 "nuq2-1%:clip=0.95",
                                 "nuq2-1%:feedback=off",
                                 "int4:feedback,damp=0%",
                                 "nuq2:levels=5",
                                 "nuq2-1%:rotate=hadamard",
                                 "nuq2-1%:widths=pair",
                                 "K=nuq2.5-1%:widths=pair/V=nuq2",
                                 "kvq2:feedback=off,icm=0",
                                 "kvq2:metric=query",
                                 "K=kvq2:metric=query/V=kvq2",
                                 "K=kvq2/V=kvq3:metric=query",
                                 "kvq3:metric=query,weights=fisher",
                                 "kvq2:metric=query,weights=none",
                                 "nuq2-1%:feedback,metric=query",
                                 "nuq2-1%:weights=query",
                                 "kvq4:metric=query,icm=0",
                                 "kvq2:metric=query,feedback=off,icm=0",
                                 "nuq2-1%:icm=1,metric=query,weights=query",
                                 "kvq2:weights=query",
                                 "int4:feedback,metric=query"}) {
    const Recipe recipe = parse_recipe(text);
    CAPTURE(text, short_form(recipe));
    CHECK(parse_recipe(short_form(recipe)) == recipe);
  }
  CHECK(short_form(parse_recipe("kvq2:sink=4")) == "kvq2:sink=4");
  // Words that change a preset are said as changes.
  for (const std::string text :
       {"kvq4:icm=16", "kvq2:rotate=none", "kvq2:recent=64", "kvq3:damp=10%,rotate=none", "kvq2:icm=0"})
    CHECK(short_form(parse_recipe(text)) == text);
  CHECK(short_form(parse_recipe("kvq2:feedback,levels=5,rotate=hadamard")) == "kvq2");
  CHECK(short_form(parse_recipe("nuq2-1%:feedback,icm=2")) == "nuq2-1%:feedback,icm=2");
  CHECK(short_form(parse_recipe("K=kvq2/V=kvq2")) == "kvq2");
  CHECK(parse_recipe("nuq2-1%:feedback=off") == parse_recipe("nuq2-1%"));
  CHECK(slug(parse_recipe("kvq1.5")) == "kvq1.5");
}

TEST_CASE("Words of feedback that contradict the rest are refused with the reason") {
  CHECK_THAT(refusal("nuq2-1%:levels=6"), ContainsSubstring("beside 2 bits it can be 4 or 5"));
  CHECK_THAT(refusal("nuq5:levels=5"), ContainsSubstring("it can be 32"));
  CHECK_THAT(refusal("K=nuq2:levels=5/V=nuq2"), ContainsSubstring("value side"));
  CHECK_THAT(refusal("K=nuq2/V=nuq2:widths=pair"), ContainsSubstring("key side"));
  CHECK_THAT(refusal("int2:levels=5"), ContainsSubstring("fitted codebooks"));
  CHECK_THAT(refusal("nuq1.5-1%"), ContainsSubstring("half bits need widths=pair"));
  CHECK_THAT(refusal("int1.5"), ContainsSubstring("'1.5'"));
  CHECK_THAT(refusal("kvq5"), ContainsSubstring("kvq4"));
  CHECK_THAT(refusal("kvq2-1%"), ContainsSubstring("unknown method"));
  CHECK_THAT(refusal("nuq2:widths=pair,key=token"), ContainsSubstring("static ranges"));
  CHECK_THAT(refusal("nuq2:widths=pair,share=head"), ContainsSubstring("share=head"));
  CHECK_THAT(refusal("nuq7:widths=pair"), ContainsSubstring("at most 6 bits"));
  CHECK_THAT(refusal("nuq2:rotate=hadamard,value=channel"), ContainsSubstring("axis token"));
  CHECK_THAT(refusal("nuq2:feedback,range=window"), ContainsSubstring("before the window is seen"));
  CHECK_THAT(refusal("nuq2:icm=17"), ContainsSubstring("0 to 16"));
  CHECK_THAT(refusal("nuq2:icm"), ContainsSubstring("0 to 16"));
  CHECK_THAT(refusal("nuq2:clip=1.5"), ContainsSubstring("at most 1"));
  CHECK_THAT(refusal("nuq2:clip=0"), ContainsSubstring("above 0"));
  CHECK_THAT(refusal("nuq2:clip=nan"), ContainsSubstring("clip takes"));
  CHECK_THAT(refusal("nuq2:damp=1"), ContainsSubstring("such as 1%"));
  CHECK_THAT(refusal("nuq2:damp=2%"), ContainsSubstring("damp= is for"));
  CHECK_THAT(refusal("nuq2:order=natural"), ContainsSubstring("order="));
  CHECK_THAT(refusal("nuq2:order=random,feedback"), ContainsSubstring("energy, ascending, natural"));
  CHECK_THAT(refusal("nuq2:clip=0.9,weights=none"), ContainsSubstring("nothing here uses them"));
  CHECK_THAT(refusal("nuq2:feedback=yes"), ContainsSubstring("on, off"));
  CHECK_THAT(refusal("nuq2:rotate=pca"), ContainsSubstring("none, hadamard"));
}

TEST_CASE("kvq2:metric=query does without gradients on both sides") {
  const Recipe recipe = parse_recipe("kvq2:metric=query");
  CHECK(recipe == parse_recipe("K=nuq2-1%:widths=pair,feedback,icm=3,metric=query,weights=query/"
                               "V=nuq2:levels=5,rotate=hadamard,feedback,icm=3,metric=query,weights=query"));
  CHECK(short_form(recipe) == "kvq2:metric=query");
  CHECK(slug(recipe) == "kvq2_metric-query");
  for (const Side side : kSides) {
    CHECK_FALSE(needs_gradients(recipe.side(side)));
    CHECK(needs_metric(recipe.side(side)));
    CHECK(recipe.side(side).rounding.clip == 1.0);  // there is nothing to clip
  }
  CHECK(with_query_metric(parse_recipe("kvq2")) == recipe);
  CHECK(with_query_metric(recipe) == recipe);
  CHECK(parse_recipe("kvq2:metric=fisher") == parse_recipe("kvq2"));
  CHECK(with_query_metric(parse_recipe("nuq3-1%")) == parse_recipe("nuq3-1%:weights=query"));
  CHECK(with_query_metric(parse_recipe("nuq3-1%:feedback")) ==
        parse_recipe("nuq3-1%:feedback,metric=query,weights=query"));
  for (const char* text : {"nuq3:weights=none", "int4", "fp8", "turbo3", "none", "none:evict=h2o,budget=50%"})
    CHECK(with_query_metric(parse_recipe(text)) == parse_recipe(text));
  CHECK(parse_recipe("kvq2:metric=query,weights=fisher").key.rounding.clip == 0.9);  // codebooks still use gradients
  CHECK(needs_gradients(parse_recipe("kvq2:metric=query,weights=fisher").key));
  CHECK_FALSE(needs_gradients(parse_recipe("int4").key));
  CHECK(needs_gradients(parse_recipe("int4:feedback").key));
  CHECK_FALSE(needs_metric(parse_recipe("kvq2").value));
}

TEST_CASE("Where metric=query and weights=query say nothing, they are refused") {
  CHECK_THAT(refusal("nuq2-1%:metric=query"), ContainsSubstring("weights=query is for codebooks"));
  CHECK_THAT(refusal("nuq2:feedback,metric=hessian"), ContainsSubstring("fisher, query"));
  CHECK_THAT(refusal("kvq2:metric=query,clip=0.9"), ContainsSubstring("clip= cuts gradients"));
  CHECK_THAT(refusal("nuq2:weights=query,rope=post"), ContainsSubstring("keys before RoPE"));
  CHECK_THAT(refusal("nuq2:feedback,metric=query,rope=post"), ContainsSubstring("keys before RoPE"));
  CHECK_THAT(refusal("int4:weights=query"), ContainsSubstring("fitted codebooks"));
  CHECK_THAT(refusal("turbo3:metric=query"), ContainsSubstring("there is none of them"));
  CHECK_THROWS_AS(with_query_metric(parse_recipe("nuq2:rope=post")), Error);
}

TEST_CASE("Widths have a choice around their mean and whole bits per pair") {
  CHECK(width_choices(parse_recipe("kvq1.5").key) == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(width_choices(parse_recipe("kvq2").key) == std::vector<int>{1, 2, 3, 4});
  CHECK(width_choices(parse_recipe("kvq3").key) == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(width_choices(parse_recipe("kvq4").key) == std::vector<int>{2, 3, 4, 5, 6});
  CHECK(head_vector_bits(parse_recipe("kvq1.5").key, 64) == 96);
  CHECK(head_vector_bits(parse_recipe("kvq1.5").key, 6) == 0);
  CHECK(head_vector_bits(parse_recipe("kvq2").key, 6) == 12);
  CHECK(head_vector_bits(parse_recipe("kvq2").key, 7) == 0);
}

TEST_CASE("Codes in groups of three take the bits that three of them need") {
  CHECK(layout::grouped_row_bits(3, 64) == 21 * 5 + 2);
  CHECK(layout::grouped_row_bits(5, 64) == 21 * 7 + 3);
  CHECK(layout::grouped_row_bits(10, 64) == 21 * 10 + 4);
  CHECK(layout::grouped_row_bits(20, 64) == 21 * 13 + 5);
  CHECK(layout::grouped_row_bits(5, 2) == 6);
  SideQuantizer side;
  side.kv_heads = 3, side.head_dim = 64;
  side.recipe = parse_recipe("kvq2").value;
  CHECK(side_shape(side).code_bytes() == 3 * 64 * 150 / 8);
  side.head_dim = 6;
  CHECK(side_shape(side).code_bytes() == 3 * 113);  // 900 bits a tile, padded to bytes once
  side.recipe = parse_recipe("kvq1.5").key;
  side.head_dim = 64;
  CHECK(side_shape(side).code_bytes() == 3 * 64 * 96 / 8);
  side.recipe = parse_recipe("kvq3").key;
  CHECK(side_shape(side).code_bytes() == 3 * layout::code_page_bytes(64, 3));
}

TEST_CASE("Packed caches hold these recipes on the CPU; the GPU refuses some and says why") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      // and words of the GPU's refusal
      {"nuq3-1%", ""},
      {"K=nuq2/V=nf4", ""},
      {"kvq3:recent=8", "no recent tokens"},
      {"kvq1.5:icm=0,feedback=off", ""},
      {"nuq2:levels=5", ""},
      {"nuq2:rotate=hadamard", ""},
      {"nuq2:feedback", ""},
      {"kvq2", ""},
      {"kvq1.5", ""},
      {"nuq2-1%:levels=5", "of values without outliers only"},
      {"nuq2-1%:rotate=hadamard", "of values without outliers only"},
      {"nuq2-1%:feedback", "of values without outliers only"},
      {"K=nuq2-1%:cap=2%,feedback/V=nuq2", "no cap="},
      {"K=nuq6:widths=pair/V=nuq2", "up to 5 bits"},
      {"int4:key=token", "keys with a range per channel"},
      {"nuq3-1%:recent=8", "no recent tokens"},
      {"kivi2", "with a range per channel"},
      {"q4_0", "no q4_0, q8_0, fp8, turbo"},
      {"K=nuq3-1%/V=turbo4", "no q4_0, q8_0, fp8, turbo"},
      {"nuq3-1%:rule=topk", "no zero=integer and no rule="}};
  for (const auto& [text, words] : cases) {
    INFO(text);
    const Recipe recipe = parse_recipe(text);
    CHECK(packed_refusal(recipe).empty());
    const std::string refused = cuda_refusal(recipe);
    CHECK(refused.empty() == words.empty());
    CHECK(refused.find(words) != std::string::npos);
    if (!words.empty()) CHECK(refused.find("--cache cuda") == 0);
  }
  for (const char* text : {"delta3", "scalar3:lowrank=2", "int3:range=window", "none", "none:evict=h2o,budget=25%"}) {
    INFO(text);
    CHECK_FALSE(packed_refusal(parse_recipe(text)).empty());
    CHECK(cuda_refusal(parse_recipe(text)) == packed_refusal(parse_recipe(text)));
  }
}
