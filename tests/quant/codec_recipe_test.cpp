// Codecs of head vectors as recipes: words, what does not fit, counted bits, and a stream of tokens against decode() of
// the bytes that it leaves.
#include <cmath>

#include "quant/codec_support.h"
#include "quant/recipe_refusal.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>
#include <kvq/vector/vector_sizes.h>

using namespace kvq;
using kvq::test::codec_quantizer;
using kvq::test::head_rows;
using kvq::test::refusal;
using kvq::test::rows_of_head;

namespace {

std::vector<float> round_trip(const VectorCodec& codec, std::span<const float> rows) {
  std::vector<std::byte> bytes;
  codec.encode(rows, bytes);
  std::vector<float> back(rows.size());
  codec.decode(bytes, back);
  return back;
}

}  // namespace

TEST_CASE("Codecs are recipes with words of their own and of caches, for each side by itself") {
  const Recipe recipe = parse_recipe("delta3:anchor=32,scale=max,rope=post,sink=4,share=head,recent=16");
  for (const Side side : kSides) {
    CHECK(recipe.side(side).codebook == CodebookKind::Vector);
    CHECK(recipe.side(side).bits == 3);
    CHECK(recipe.side(side).vector == parse_vector_recipe("delta3:anchor=32,scale=max"));
    CHECK(recipe.side(side).share == Share::Head);
    CHECK(recipe.side(side).recent == 16);
  }
  CHECK(recipe.key.post_rope);
  CHECK(recipe.sinks == 4);
  CHECK(parse_recipe("scalar3").sinks == 1);
  CHECK(parse_recipe("K=delta3/V=turbo3").sinks == 1);
  CHECK(parse_recipe("pq").key.share == Share::Head);
  CHECK(parse_recipe("pq:share=layer").key.share == Share::Layer);
  CHECK(parse_recipe("pq:weights=none").value.weights == FitWeights::None);
  const Recipe apart = parse_recipe("K=pq:m=8,bits=6/V=nuq3");
  CHECK(apart.key.vector.subspaces == 8);
  CHECK(apart.value.codebook == CodebookKind::Nuq);
  CHECK(apart.value.vector == VectorRecipe{});
  for (const auto& [text, canonical] : std::vector<std::pair<std::string, std::string>>{
           {"scalar3", "scalar3"},
           {"pq:m=16,bits=8", "pq"},
           {"delta3:anchor=64,sink=1", "delta3"},
           {"delta3:sink=0,anchor=16", "delta3:anchor=16,sink=0"},
           {"scalar4:entropy=rans,rope=post", "scalar4:entropy=rans,rope=post"},
           {"scalar3:levels=even", "scalar3:levels=even"},
           {"pq:norm,m=8,share=layer,weights=query", "pq:m=8,norm,weights=query,share=layer"},
           {"scalar3:lowrank=4,page=64,flush=64", "scalar3:lowrank=4,page=64"},
           {"scalar3:lowrank=4,page=64,flush=128,recent=32", "scalar3:lowrank=4,page=64,recent=32,flush=128"},
           {"K=delta3:anchor=16/V=delta3:anchor=16", "delta3:anchor=16"},
           {"K=delta3:sink=2/V=nuq3", "K=delta3:sink=2/V=nuq3"},
           {"K=nuq3-1%/V=pq:m=8", "K=nuq3-1%/V=pq:m=8"},
           {"K=turbo3/V=scalar3", "K=turbo3/V=scalar3"},
           {"scalar3:evict=h2o,budget=25%", "scalar3:evict=h2o,budget=25%"},
           {"pq:clip=0.9", "pq:clip=0.9"}}) {
    INFO(text);
    CHECK(short_form(parse_recipe(text)) == canonical);
    CHECK(parse_recipe(canonical) == parse_recipe(text));
  }
  CHECK(slug(parse_recipe("delta3:anchor=16")) == "delta3_anchor-16");
}

TEST_CASE("Words that do not go with a codec, or without one, are refused") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"delta9", "known"},
      {"vector3", "unknown method 'vector3'"},
      {"delta3:lowrank=4", "unknown word 'lowrank=4'; known for delta3: scale=, levels=, anchor=N"},
      {"delta3:quality=9", "sink=N"},
      {"nuq3:anchor=4", "unknown word 'anchor=4'"},
      {"delta3:anchor=0", "'anchor=0'"},
      {"scalar3:lowrank=4,entropy=rans", "do not go together"},
      {"scalar3:levels=4", "levels can be: fit, even"},
      {"delta3-1%", "unknown method"},
      {"scalar3:qnorm", "qnorm"},
      {"scalar3:weights=none", "fitted without weights"},
      {"pq:weights=fisher-unscaled", "fisher-unscaled"},
      {"pq:weights=query,rope=post", "before RoPE"},
      {"scalar3:share=4", "share=layer and share=head"},
      {"scalar3:range=static", "another range"},
      {"scalar3:key=channel", "another axis"},
      {"scalar3:feedback", "codecs of head vectors"},
      {"scalar3:clip=0.9", "clip="},
      {"scalar3:qjl", "qjl is for turbo"},
      {"pq:norm=fit", "unknown word 'norm=fit'"},
      {"scalar3:anchor=8,anchor=9", "unknown word 'anchor=8'"},
      {"delta3:anchor=8,anchor=9", "twice"},
      {"scalar3:lowrank=4,page=64,flush=96", "multiple of page 64"},
      {"delta3:evict=h2o,budget=25%", "delta3 codes them in blocks"},
      {"scalar3:lowrank=2,evict=h2o,budget=25%", "in blocks"}};
  for (const auto& [text, part] : bad) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(part));
  }
  Recipe wrong = parse_recipe("scalar3");
  wrong.key.bits = 4;
  CHECK_THROWS_WITH(validate(wrong), ContainsSubstring("4 bits beside codec scalar3"));
  Recipe stray = parse_recipe("nuq3");
  stray.value.vector.anchor = 5;
  CHECK_THROWS_WITH(validate(stray), ContainsSubstring("codebook vector"));
  CHECK_NOTHROW(check_shape(parse_recipe("pq:m=16"), 2, 64));
  CHECK_THROWS_WITH(check_shape(parse_recipe("pq:m=16"), 2, 40), ContainsSubstring("m must divide"));
  for (const std::string text : {"delta3", "K=nuq3/V=pq:lowrank=2", "K=nuq3/V=scalar4:entropy=rans"}) {
    CHECK_THAT(packed_refusal(parse_recipe(text)), ContainsSubstring("use --cache simulated"));
    CHECK_THAT(cuda_refusal(parse_recipe(text)), ContainsSubstring("use --cache simulated"));
  }
  CHECK_THAT(packed_refusal(parse_recipe("delta3")), ContainsSubstring("delta3 codes tokens together with others"));
  CHECK(packed_refusal(parse_recipe("pq")).empty());
}

TEST_CASE("Codecs of single rows: bytes in pages, counted by hand") {
  const KvShape shape = {2, 8, 8, 64};
  const double table = 8.0 * 4 / (2 * 64 * 512);  // one entry of the block table per page
  const auto bits = [&](const std::string& recipe, std::int64_t tokens) {
    return forecast_footprint(codec_quantizer(recipe, shape), tokens).bits_per_value(shape, tokens);
  };
  CHECK(bits("scalar3:sink=0", 4096) == Approx(3 + 16.0 / 64 + table));
  CHECK(bits("scalar3", 4096) == Approx(3 + 16.0 / 64 + table + 16.0 / 4096));
  CHECK(bits("pq:bits=4,sink=0", 4096) == Approx(1 + table));
  CHECK(bits("pq:bits=4,norm,sink=0", 4096) == Approx(1 + 16.0 / 64 + table));
  const Quantizer kept = codec_quantizer("scalar3:evict=snapkv,budget=64,sink=0", shape);
  const Footprint footprint = forecast_footprint(kept, 4096);
  CHECK(footprint.codes == 2LL * 8 * 64 * 2 * 24);
  CHECK(footprint.ranges == 2LL * 8 * 64 * 2 * 2);
  CHECK(nominal_bits(parse_recipe("pq:m=16,bits=8"), 64) == 2.0);
  CHECK(nominal_bits(parse_recipe("K=pq:m=16,bits=8/V=delta3"), 64) == 2.5);
  // An exponent, a level of 4 bytes each; pq weights and centroids for each head. One exponent of exact values.
  CHECK(table_bytes(codec_quantizer("scalar3", shape)) == 2 * 2 * (2 + 8 * 4 + 4));
  CHECK(table_bytes(codec_quantizer("pq:bits=4", shape)) == 2 * 2 * (8 * (2 + 4 * 64 + 4 * 64 * 16) + 4));
}

TEST_CASE("Blocks, counted by hand") {
  const KvShape shape = {1, 2, 2, 32};
  const std::int64_t row = 2 + 12, none = 0;
  // delta: a flag a row. 64 rows: 8 + 64 · 14 bytes for each head; one block has 3 sinks less; the open one is whole.
  const Footprint delta = forecast_footprint(codec_quantizer("delta3:sink=3", shape), 200);
  CHECK(delta.codes == 2 * 2 * ((8 + 61 * row) + 2 * (8 + 64 * row) + (8 + 64 * row)));
  CHECK(delta.exact == 2 * 3 * 64 * 2);
  CHECK(delta.tables == 2 * 4 * 4);
  CHECK(delta.padding == 2 * (16 - 2 * (8 + 61 * row) % 16));
  CHECK(delta.ranges == none);
  CHECK(delta.selection == none);
  // Low rank: tokens that wait are exact, 64 of them have room; two factors of rank 2 over 64 rows and 32 channels.
  const Footprint rank = forecast_footprint(codec_quantizer("scalar3:lowrank=2,page=64,sink=0", shape), 200);
  CHECK(rank.codes == 2 * 2 * 3 * (64 * row + 2 * (4 + 64 + 32)));
  CHECK(rank.exact == 2 * 64 * 64 * 2);
  CHECK(rank.tables == 2 * 3 * 4);
  // Entropy coding: what calibration measured of a full page, and 4 bytes for each head's length.
  Quantizer entropy = codec_quantizer("scalar4:entropy=rans,page=50,sink=0", shape);
  entropy.layers[0].key.block_bytes = 1000.4;
  entropy.layers[0].value.block_bytes = 0;  // not measured: the most that it can be
  const std::int64_t most = 2 * (50 * 2 + 1 + 50 * 16);
  const Footprint coded = forecast_footprint(entropy, 120);
  CHECK(coded.codes == 2 * (1000 + 8) + (most + 8) + 3 * (most + 8));
  // One side in blocks, the other in pages.
  const Footprint mixed = forecast_footprint(codec_quantizer("K=delta3:sink=0/V=turbo3", shape), 64);
  CHECK(mixed.codes >= 2 * 2 * (8 + 64 * row));
}

TEST_CASE("A stream of tokens gives what decode() makes of its blocks, whatever the portions") {
  const KvShape shape = {1, 2, 2, 16};
  constexpr std::int64_t kTokens = 150, kSinks = 3;
  for (const std::string recipe :
       {"scalar3", "pq:m=8,bits=4", "delta3:anchor=32", "delta2:anchor=32,abits=4,threshold=0.8,share=head",
        "delta3:anchor=2", "scalar4:entropy=rans,page=32", "scalar3:entropy=huffman,page=32,share=head"}) {
    INFO(recipe);
    const Quantizer quantizer = codec_quantizer(recipe, shape);
    const SideQuantizer& side = quantizer.layers[0].key;
    const SideSimulator simulator(side);
    const std::int64_t block = block_rows(side.recipe.vector);
    const std::vector<float> x = head_rows(kTokens, shape, 7);
    for (const std::vector<std::int64_t>& portions :
         {std::vector<std::int64_t>{kTokens - kSinks}, std::vector<std::int64_t>(kTokens - kSinks, 1),
          std::vector<std::int64_t>{40, 1, 22, 1, 1, 82}}) {
      std::vector<float> found(x);
      const auto blocks = simulator.start();
      CHECK((blocks != nullptr) == (block > 1));
      std::int64_t first = kSinks;
      for (const std::int64_t count : portions) {
        std::vector<std::uint32_t> outliers(static_cast<std::size_t>(count), 9);
        simulator.round_trip(
            std::span(found).subspan(static_cast<std::size_t>(first) * 32, static_cast<std::size_t>(count) * 32), first,
            2, outliers, blocks.get());
        CHECK(outliers == std::vector<std::uint32_t>(outliers.size(), 0));
        first += count;
      }
      const auto codecs = head_codecs(side);
      for (int head = 0; head < 2; ++head) {
        const std::vector<float> rows = rows_of_head(x, shape, head), back = rows_of_head(found, shape, head);
        std::vector<std::size_t> sizes;
        for (std::int64_t begin = kSinks; begin < kTokens;) {
          const std::int64_t end = std::min((begin / block + 1) * block, kTokens);
          const auto from = std::span<const float>(rows).subspan(static_cast<std::size_t>(begin) * 16,
                                                                 static_cast<std::size_t>(end - begin) * 16);
          const std::vector<float> wanted = round_trip(*codecs[static_cast<std::size_t>(head)], from);
          CHECK(std::equal(wanted.begin(), wanted.end(), back.begin() + begin * 16));
          std::vector<std::byte> bytes;
          codecs[static_cast<std::size_t>(head)]->encode(from, bytes);
          if (end % block == 0) sizes.push_back(bytes.size());
          if (blocks && end % block == 0) CHECK((blocks->closed(head)[sizes.size() - 1] == bytes));
          begin = end;
        }
        if (blocks) CHECK(blocks->closed(head).size() == sizes.size());
      }
    }
  }
}

TEST_CASE("Whole blocks come at once where a codec needs them") {
  const KvShape shape = {1, 2, 2, 16};
  const Quantizer quantizer = codec_quantizer("scalar3:lowrank=2,page=32,share=head", shape);
  const SideSimulator simulator(quantizer.layers[0].value);
  const std::vector<float> x = head_rows(96, shape, 8);
  std::vector<float> found(x);
  const auto blocks = simulator.start();
  simulator.round_trip(std::span(found).subspan(1 * 32, 31 * 32), 1, 2, {}, blocks.get());
  simulator.round_trip(std::span(found).subspan(32 * 32), 32, 2, {}, blocks.get());
  const auto codecs = head_codecs(quantizer.layers[0].value);
  for (int head = 0; head < 2; ++head) {
    const std::vector<float> rows = rows_of_head(x, shape, head), back = rows_of_head(found, shape, head);
    for (const auto& [begin, count] : {std::pair<std::size_t, std::size_t>{1, 31}, {32, 32}, {64, 32}}) {
      const auto wanted = round_trip(*codecs[static_cast<std::size_t>(head)],
                                     std::span<const float>(rows).subspan(begin * 16, count * 16));
      CHECK(std::equal(wanted.begin(), wanted.end(), back.begin() + static_cast<std::ptrdiff_t>(begin * 16)));
    }
  }
  CHECK(blocks->closed_bytes().size() == 3);
  CHECK_THAT(short_form(quantizer.recipe), ContainsSubstring("lowrank"));
  CHECK(exact_window(quantizer.recipe, Side::Key).flush == 32);
  CHECK(exact_window(parse_recipe("delta3"), Side::Key).flush == 1);
}

TEST_CASE("A head vector that does not fit names token and channel") {
  const KvShape shape = {1, 2, 2, 16};
  for (const std::string recipe : {"scalar3", "delta3:anchor=32", "scalar4:entropy=rans,page=32",
                                   "scalar3:lowrank=2,page=100,sink=0", "scalar3:share=head"}) {
    INFO(recipe);
    const Quantizer quantizer = codec_quantizer(recipe, shape);
    const SideSimulator simulator(quantizer.layers[0].value);
    std::vector<float> x = head_rows(100, shape, 9);
    x[77 * 32 + 16 + 5] = 1e6f;
    const auto blocks = simulator.start();
    try {
      simulator.round_trip(x, 0, 2, {}, blocks.get());
      FAIL("no error");
    } catch (const ExactOverflow& overflow) {
      CHECK(overflow.token == 77);
      CHECK(overflow.channel == 21);
      CHECK(overflow.value > 9.9e5f);
    }
  }
  SideQuantizer without = codec_quantizer("pq:m=8", shape).layers[0].key;
  without.vector_tables.pop_back();
  CHECK_THROWS_AS(SideSimulator(without), Error);
}
