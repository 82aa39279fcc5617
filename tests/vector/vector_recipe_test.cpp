// Words of vector recipes: what they parse to, their short forms, and what is refused with which reason.

#include <kvq/core/error.h>
#include <kvq/vector/vector_recipe.h>

#include "support/catch.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Vector recipes parse to their fields, and short forms to themselves") {
  const VectorRecipe delta = parse_vector_recipe("delta3:anchor=16,threshold=0.5,abits=4,scale=max");
  CHECK(delta.method == VectorMethod::Delta);
  CHECK(delta.bits == 3);
  CHECK(delta.anchor == 16);
  CHECK(delta.threshold == 0.5);
  CHECK(delta.anchor_bits == 4);
  CHECK(delta.scale == RowScale::Max);
  const VectorRecipe product = parse_vector_recipe("pq:m=32,bits=6,norm,lowrank=4,page=64,fbits=4");
  CHECK(product.subspaces == 32);
  CHECK(product.bits == 6);
  CHECK(product.norm);
  CHECK(product.low_rank == 4);
  CHECK(product.page == 64);
  CHECK(product.factor_bits == 4);

  for (const auto& [text, canonical] : std::vector<std::pair<std::string, std::string>>{
           {"scalar3", "scalar3"},
           {"scalar3:scale=norm,levels=fit", "scalar3"},
           {"scalar8:levels=even,scale=max", "scalar8:scale=max,levels=even"},
           {"scalar4:page=64,entropy=rans", "scalar4:entropy=rans,page=64"},
           {"scalar4:entropy=huffman", "scalar4:entropy=huffman"},
           {"scalar3:lowrank=4", "scalar3:lowrank=4"},
           {"delta3:anchor=64,threshold=0.1,abits=3", "delta3:threshold=0.1"},
           {"delta2:abits=8", "delta2:abits=8"},
           {"pq:m=16,bits=8", "pq"},
           {"pq:norm,m=8,bits=1,lowrank=2,fbits=2", "pq:m=8,bits=1,norm,lowrank=2,fbits=2"}}) {
    CHECK(short_form(parse_vector_recipe(text)) == canonical);
    CHECK(parse_vector_recipe(canonical) == parse_vector_recipe(text));
  }
}

TEST_CASE("What a vector recipe cannot mean is refused with the word and the known ones") {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "unknown method ''"},
           {"scaler3", "unknown method 'scaler3'; known: scalarB, deltaB"},
           {"scalar", "bits ''"},
           {"scalar9", "bits '9'"},
           {"delta33", "bits '33'"},
           {"scalar3:", "unknown word ''"},
           {"scalar3:anchor=4", "unknown word 'anchor=4'; known here: scale="},
           {"delta3:lowrank=4", "unknown word 'lowrank=4'; known here: scale=, levels=, anchor=N"},
           {"pq:entropy=rans", "unknown word 'entropy=rans'"},
           {"pq:norm=1", "unknown word 'norm=1'"},
           {"scalar3:lowrank", "unknown word 'lowrank'"},
           {"scalar3:scale=mean", "'scale=mean'; scale can be: norm, max"},
           {"scalar3:levels=odd", "'levels=odd'; levels can be: fit, even"},
           {"scalar3:entropy=zip", "'entropy=zip'; entropy can be: huffman, rans"},
           {"scalar3:lowrank=0", "'lowrank=0'; lowrank is a whole number from 1 to 256"},
           {"scalar3:lowrank=4x", "'lowrank=4x'"},
           {"delta3:anchor=", "'anchor='; anchor is a whole number from 1 to 65536"},
           {"delta3:threshold=-1", "'threshold=-1'"},
           {"delta3:threshold=nan", "'threshold=nan'"},
           {"pq:m=4,m=8", "'m' stands there twice"},
           {"scalar3:lowrank=2,entropy=rans", "do not go together"},
           {"scalar3:fbits=4", "fbits= is for"},
           {"scalar3:page=4", "page= is for lowrank= or entropy="},
           {"pq:page=4", "page= is for lowrank="}}) {
    INFO(text);
    try {
      parse_vector_recipe(text);
      FAIL("was accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK_THAT(error.what(), ContainsSubstring("vector recipe '" + text + "'") && ContainsSubstring(message));
    }
  }
}

TEST_CASE("Tables make the same codec again, and nothing but theirs do") {
  const auto x = correlated(300, 16, 0.9, 1);
  VectorSample sample;
  sample.x = x;
  for (const char* text :
       {"scalar3", "scalar2:scale=max,levels=even", "scalar4:entropy=rans,page=50", "scalar4:entropy=huffman",
        "delta3:anchor=32,abits=4", "scalar2:lowrank=3,page=64", "pq:m=8,bits=5", "pq:m=8,bits=4,norm,lowrank=2"}) {
    INFO(text);
    const VectorRecipe recipe = parse_vector_recipe(text);
    const auto tables = train_vector_tables(recipe, 16, sample);
    const auto codec = make_codec(recipe, 16, tables), same = make_codec(recipe, 16, sample);
    CHECK((encoded(*codec, x) == encoded(*same, x)));
    CHECK(squared_error(x, restored(*codec, x)) < 0.25 * squared_error(x, std::vector<float>(x.size(), 0.0f)));
    const std::span<const std::byte> all(tables);
    CHECK_THROWS_AS(make_codec(recipe, 16, all.first(all.size() - 1)), Error);
    std::vector<std::byte> longer(tables);
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS(make_codec(recipe, 16, longer), Error);
    std::vector<std::byte> damaged(tables);
    damaged[5] = std::byte{0x7f}, damaged[4] = std::byte{0xc0};  // NaN
    CHECK_THROWS_AS(make_codec(recipe, 16, damaged), Error);
  }
}

TEST_CASE("Weights are for product quantization; shapes have to suit it") {
  const auto x = gaussian(64 * 12, 2);
  const std::vector<float> weights(12, 2.0f);
  VectorSample sample;
  sample.x = x;
  sample.channel_weights = weights;
  CHECK_THROWS_WITH(train_vector_tables(parse_vector_recipe("scalar3"), 12, sample), ContainsSubstring("only pq"));
  CHECK_NOTHROW(make_codec(parse_vector_recipe("pq:m=6,bits=3"), 12, sample));
  CHECK_THROWS_WITH(make_codec(parse_vector_recipe("pq:m=5,bits=3"), 12, sample), ContainsSubstring("5 subspaces"));
}

TEST_CASE("Rows far beyond fp16 and far below it are coded as well as others") {
  const auto x = correlated(200, 16, 0.9, 3);
  for (const float size : {1e-25f, 1e-6f, 1e6f, 1e30f}) {
    std::vector<float> scaled(x);
    for (float& value : scaled) value *= size;
    VectorSample plain, far;
    plain.x = x;
    far.x = scaled;
    for (const char* text : {"scalar3", "scalar3:scale=max", "delta3:anchor=32", "pq:m=8,bits=5,norm"}) {
      INFO(text << ", " << size);
      const VectorRecipe recipe = parse_vector_recipe(text);
      auto found = restored(*make_codec(recipe, 16, far), scaled);
      for (float& value : found) value /= size;
      const double usual = squared_error(x, restored(*make_codec(recipe, 16, plain), x));
      CHECK(squared_error(x, found) < 1.1 * usual);
    }
  }
}
