// Blocks that fill row by row, and what rows take, against what encode() makes of all of them at once.

#include <kvq/core/error.h>
#include <kvq/vector/vector_recipe.h>
#include <kvq/vector/vector_sizes.h>

#include "support/catch.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr int kDim = 12;

std::unique_ptr<VectorCodec> codec_of(const std::string& text, std::span<const float> x) {
  VectorSample sample;
  sample.x = x;
  return make_codec(parse_vector_recipe(text), kDim, sample);
}

std::span<const float> rows_of(const std::vector<float>& x, std::size_t first, std::size_t count) {
  return std::span<const float>(x).subspan(first * kDim, count * kDim);
}

}  // namespace

TEST_CASE("An open block gives the bytes of encode() and the values of decode(), in whatever portions rows come") {
  const auto x = correlated(40, kDim, 0.9, 21);
  for (const std::string text :
       {"scalar3", "pq:m=4,bits=3", "delta3:anchor=40", "delta2:anchor=40,abits=5,threshold=0.7",
        "delta3:anchor=64,threshold=0", "scalar4:entropy=rans,page=40", "scalar3:entropy=huffman,page=50"}) {
    INFO(text);
    const auto codec = codec_of(text, x);
    const auto bytes = encoded(*codec, x);
    const auto values = decoded(*codec, bytes, x.size());
    for (const std::vector<std::size_t>& portions :
         {std::vector<std::size_t>(40, 1), std::vector<std::size_t>{40}, std::vector<std::size_t>{7, 1, 15, 17}}) {
      const auto block = codec->open_block();
      std::vector<float> found;
      for (const std::size_t count : portions) {
        const std::size_t first = found.size() / kDim;
        CHECK(block->rows() == static_cast<std::int64_t>(first));
        std::vector<float> part(count * kDim);
        block->append(rows_of(x, first, count), part);
        found.insert(found.end(), part.begin(), part.end());
        // Closing changes nothing: what there is so far is a block of fewer rows.
        std::vector<std::byte> so_far;
        block->close(so_far);
        CHECK((so_far == encoded(*codec, rows_of(x, 0, first + count))));
      }
      CHECK(found == values);
    }
  }
}

TEST_CASE("Blocks that need all rows at once take them in one portion") {
  const auto x = correlated(20, kDim, 0.9, 22);
  const auto codec = codec_of("scalar3:lowrank=2,page=20", x);
  const auto block = codec->open_block();
  std::vector<float> found(x);
  block->append(found, found);
  CHECK(found == restored(*codec, x));
  std::vector<std::byte> bytes;
  block->close(bytes);
  CHECK((bytes == encoded(*codec, x)));
  CHECK_THROWS_AS(block->append(rows_of(x, 0, 1), {}), std::logic_error);
}

TEST_CASE("Sizes that follow from the recipe are those of encoded blocks, or the most of them where they vary") {
  const auto x = correlated(120, kDim, 0.5, 23);
  for (const std::string text :
       {"scalar3", "scalar8:scale=max", "pq:m=4,bits=3", "pq:m=6,bits=5,norm", "delta3:anchor=16", "delta1:anchor=5",
        "delta2:anchor=16,abits=5", "delta5:anchor=16,abits=2", "scalar4:entropy=rans,page=16",
        "scalar2:entropy=huffman,page=7", "scalar3:lowrank=4,page=16", "scalar3:lowrank=3,page=2,fbits=5",
        "pq:m=4,bits=3,norm,lowrank=2,page=10"}) {
    INFO(text);
    const VectorRecipe recipe = parse_vector_recipe(text);
    const auto codec = codec_of(text, x);
    CHECK(block_rows(recipe) == codec->block_rows());
    const std::int64_t most = block_rows(recipe) == 1 ? 9 : block_rows(recipe);
    for (std::int64_t rows = 0; rows <= most; ++rows) {
      const auto bytes =
          static_cast<std::int64_t>(encoded(*codec, rows_of(x, 0, static_cast<std::size_t>(rows))).size());
      if (has_varying_blocks(recipe)) {
        CHECK(bytes <= most_block_bytes(recipe, kDim, rows));
      } else {
        CHECK(bytes == most_block_bytes(recipe, kDim, rows));
      }
    }
    if (block_rows(recipe) == 1) CHECK(most_block_bytes(recipe, kDim, 7) == 7 * row_sizes(recipe, kDim).bytes());
  }
  // The bound is reached: codes that do not compress are packed, and every row an anchor.
  const auto noise = gaussian(16 * kDim, 24);
  CHECK(encoded(*codec_of("delta2:anchor=16,abits=5,threshold=0", noise), noise).size() ==
        static_cast<std::size_t>(most_block_bytes(parse_vector_recipe("delta2:anchor=16,abits=5"), kDim, 16)));
  CHECK(needs_whole_blocks(parse_vector_recipe("pq:m=4,lowrank=1")));
  CHECK_FALSE(needs_whole_blocks(parse_vector_recipe("delta3")));
  CHECK_FALSE(has_varying_blocks(parse_vector_recipe("delta3:abits=3")));
}

TEST_CASE("A row that does not fit is named by its place in the block") {
  const auto x = correlated(30, kDim, 0.9, 25);
  for (const std::string text : {"scalar3", "delta3:anchor=30,threshold=1000", "scalar4:entropy=rans,page=30"}) {
    INFO(text);
    const auto codec = codec_of(text, x);
    const auto block = codec->open_block();
    block->append(rows_of(x, 0, 11), {});
    std::vector<float> next(3 * kDim, 0.5f);
    next[2 * kDim + 4] = -1e9f;
    try {
      block->append(next, {});
      FAIL("no error");
    } catch (const VectorOverflow& overflow) {
      CHECK(overflow.row == 13);
      CHECK(overflow.channel == 4);
      CHECK(overflow.value < -9e8f);
      CHECK_THAT(overflow.what(), ContainsSubstring("row 13"));
    }
  }
}

TEST_CASE("Long forms name every word that says something and mean the same") {
  for (const auto& [text, full] : std::vector<std::pair<std::string, std::string>>{
           {"scalar3", "scalar3:scale=norm,levels=fit"},
           {"scalar3:lowrank=4", "scalar3:scale=norm,levels=fit,lowrank=4,fbits=8,page=128"},
           {"scalar4:levels=even,entropy=rans", "scalar4:scale=norm,levels=even,entropy=rans,page=128"},
           {"delta3:scale=max", "delta3:scale=max,levels=fit,anchor=64,threshold=1,abits=3"},
           {"delta2:abits=4", "delta2:scale=norm,levels=fit,anchor=64,threshold=1,abits=4"},
           {"pq", "pq:m=16,bits=8"},
           {"pq:norm,m=8", "pq:m=8,bits=8,norm"}}) {
    CHECK(long_form(parse_vector_recipe(text)) == full);
    CHECK(parse_vector_recipe(full) == parse_vector_recipe(text));
  }
  CHECK(is_vector_head("delta8"));
  CHECK_FALSE(is_vector_head("delta"));
  CHECK_FALSE(is_vector_head("delta9"));
  CHECK_FALSE(is_vector_head("nuq3"));
  CHECK(is_vector_word(parse_vector_recipe("delta3"), "abits"));
  CHECK_FALSE(is_vector_word(parse_vector_recipe("delta3"), "a"));
  CHECK_FALSE(is_vector_word(parse_vector_recipe("delta3"), "lowrank"));
  CHECK(is_vector_word(parse_vector_recipe("pq"), "norm"));
}
