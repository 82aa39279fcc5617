// Recipes with ranges of groups, and with tokens that wait before they are quantized, in packed caches.
#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "support/catch.h"

#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::int64_t kTokens = 210;
const KvShape kShape = {2, 6, 3, 16};

/// Largest difference of the answer to the last query from the reference's, over what it reads from the bytes.
double reference_difference(const PackedSequence& sequence, int layer, const at::Tensor& query) {
  const Quantizer& quantizer = sequence.pool().quantizer();
  const KvShape& shape = quantizer.shape;
  const std::vector<double> expected = reference::decode_attention(
      {shape.heads, shape.kv_heads, shape.head_dim}, doubles(query), reference_decode(sequence, layer, Side::Key),
      reference_decode(sequence, layer, Side::Value),
      {quantizer.rope.inverse_frequencies(), quantizer.recipe.key.post_rope});
  const std::vector<float> out = answer(sequence, layer, query);
  return largest_difference(expected, {out.begin(), out.end()});
}

}  // namespace

TEST_CASE("Every query sees what the simulated cache shows it, however tokens are cut into calls") {
  std::uint64_t seed = 1;
  for (const std::string& recipe : grouped_recipes()) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, kShape, ++seed, 0.04);
    const std::vector<AttentionInput> window = random_window(kShape, kTokens, 100 + seed);
    SimulatedCache simulated(quantizer, 2);
    const at::Tensor expected = run(simulated, window, {kTokens});
    PackedCache whole(quantizer, 2);
    CHECK(largest_difference(doubles(expected), doubles(run(whole, window, {kTokens}))) < 4e-6);
    CHECK(whole.bytes() == simulated.footprint().total());
    for (const std::int64_t size : {1, 7, 64, 100}) {
      INFO("parts of " << size);
      PackedCache pieces(quantizer, 1);
      CHECK(largest_difference(doubles(expected), doubles(run(pieces, window, equal_parts(kTokens, size)))) < 4e-6);
      CHECK(pieces.bytes() == whole.bytes());
      for (int layer = 0; layer < kShape.layers; ++layer)
        CHECK(pieces.sequence().content(layer) == whole.sequence().content(layer));
    }
  }
}

TEST_CASE("Counted at every length: what is allocated is what the simulated cache counts") {
  std::uint64_t seed = 60;
  for (const std::string& recipe : grouped_recipes()) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, kShape, ++seed, 0.04);
    const auto pool = std::make_shared<PackedPool>(quantizer);
    PackedCache packed(pool, 1);
    SimulatedCache simulated(quantizer, 1);
    CHECK(packed.bytes() == simulated.footprint().total());  // room that is kept before there are tokens
    const std::vector<AttentionInput> window = random_window(kShape, kTokens, seed);
    std::int64_t first = 0, wrong = 0;
    for (const std::int64_t count : {1, 1, 1, 2, 10, 1, 16, 32, 1, 60, 1, 1, 1, 40}) {
      for (const AttentionInput& layer : window) {
        packed.attend(part_of(layer, first, count));
        simulated.attend(part_of(layer, first, count));
      }
      first += count;
      wrong += packed.bytes() != simulated.footprint().total();
    }
    CHECK(wrong == 0);
    std::int64_t apart = 0;
    for (const Side side : kSides) {
      apart +=
          kShape.layers * 2 * kShape.width() * (quantizer->recipe.sinks + exact_window(quantizer->recipe, side).room());
    }
    const std::int64_t pages = (pool->layer(0).pages.taken() + pool->layer(1).pages.taken());
    CHECK(packed.bytes() == pool->taken_bytes() + apart + 4 * pages);
  }
}

TEST_CASE("What waits and what has ranges of groups is read as the double-precision reference reads it") {
  std::uint64_t seed = 20;
  for (const std::string& recipe : grouped_recipes()) {
    const auto quantizer = random_quantizer(recipe, kShape, ++seed, 0.04);
    const auto pool = std::make_shared<PackedPool>(quantizer);
    for (const std::int64_t length : {1, 2, 15, 31, 32, 63, 64, 65, 130, 200}) {
      INFO(recipe << ", " << length << " tokens");
      PackedSequence sequence(pool);
      Rng rng(seed);
      const AttentionInput input = random_input(kShape, 1, length, rng);
      sequence.append(1, numbers(input.key), numbers(input.value), 1);
      const at::Tensor query = input.query.narrow(0, length - 1, 1).contiguous();
      CHECK(reference_difference(sequence, 1, query) < 2e-5);
      sequence.release(1);
      CHECK(reference_difference(sequence, 1, query) < 2e-5);
    }
    CHECK(pool->taken_bytes() == 0);
  }
}

TEST_CASE("Cropping drops waiting tokens, and leaves closed groups quantized") {
  std::uint64_t seed = 40;
  for (const std::string& recipe : grouped_recipes()) {
    const auto quantizer = random_quantizer(recipe, kShape, ++seed, 0.04);
    const auto pool = std::make_shared<PackedPool>(quantizer);
    Rng rng(seed);
    const AttentionInput input = random_input(kShape, 0, kTokens, rng);
    const auto append = [&](PackedSequence& sequence, std::int64_t first, std::int64_t count) {
      const AttentionInput part = part_of(input, first, count);
      for (int layer = 0; layer < kShape.layers; ++layer) {
        sequence.append(layer, numbers(part.key), numbers(part.value), 1);
        sequence.release(layer);
      }
    };
    for (const std::int64_t kept : {0, 1, 5, 31, 32, 40, 64, 77, 128, 150, 199, 209, 210}) {
      INFO(recipe << ", cropped to " << kept);
      PackedSequence cropped(pool), plain(pool);
      append(cropped, 0, kTokens);
      std::int64_t settled[2];
      std::vector<double> before[2];
      for (const Side side : kSides) {
        settled[static_cast<int>(side)] = cropped.settled(0, side);
        before[static_cast<int>(side)] = reference_decode(cropped, 0, side);
        before[static_cast<int>(side)].resize(static_cast<std::size_t>(kept * kShape.width()));
      }
      cropped.crop(kept);
      CHECK(cropped.length() == kept);
      bool as_plain = true;  // nothing of it is coded earlier than it would have been
      for (const Side side : kSides) {
        const auto index = static_cast<int>(side);
        CHECK(cropped.settled(0, side) == std::min(settled[index], kept));
        CHECK(reference_decode(cropped, 0, side) == before[index]);
        as_plain &= exact_window(quantizer->recipe, side).settled(kept) == cropped.settled(0, side);
      }
      if (kept > 0) append(plain, 0, kept);
      if (as_plain) {
        CHECK(cropped.bytes() == plain.bytes());
        const bool cut_group =
            quantizer->recipe.key.axis == Axis::ChannelGroup && kept % quantizer->recipe.key.group != 0;
        if (!cut_group || cropped.settled(0, Side::Key) < kept) CHECK(cropped.content(1) == plain.content(1));
      }
      // And it goes on: what was kept stays, what comes is answered from.
      append(cropped, kept, kTokens - kept);
      CHECK(cropped.length() == kTokens);
      for (const Side side : kSides) {
        CHECK(cropped.settled(0, side) >= settled[static_cast<int>(side)]);
        std::vector<double> after = reference_decode(cropped, 0, side);
        CHECK(after.size() == static_cast<std::size_t>(kTokens * kShape.width()));
        after.resize(static_cast<std::size_t>(std::min(settled[static_cast<int>(side)], kept) * kShape.width()));
        before[static_cast<int>(side)].resize(after.size());
        CHECK(after == before[static_cast<int>(side)]);
      }
      CHECK(reference_difference(cropped, 1, input.query.narrow(0, kTokens - 1, 1).contiguous()) < 2e-5);
    }
    CHECK(pool->taken_bytes() == 0);
  }
}

TEST_CASE("A value that fits no fp16 leaves waiting tokens and pages as they were") {
  const KvShape shape = {1, 2, 2, 8};
  for (const std::string recipe : {"kivi2:group=8,recent=8", "K=int4-5%/V=nuq2-5%:recent=20"}) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, shape, 1);
    Rng rng(9);
    AttentionInput input = random_input(shape, 0, 100, rng);
    PackedCache cache(quantizer, 2), calm(quantizer, 2);
    cache.attend(part_of(input, 0, 30)), calm.attend(part_of(input, 0, 30));
    for (const bool in_key : {true, false}) {
      float* data = (in_key ? input.key : input.value).mutable_data_ptr<float>();
      const float was = std::exchange(data[(70 * 2 + 1) * 8 + 3], -7e4f);
      CHECK_THROWS_AS(cache.attend(part_of(input, 30, 70)), Error);
      CHECK(cache.tokens() == 30);
      CHECK(cache.bytes() == calm.bytes());
      CHECK(cache.sequence().content(0) == calm.sequence().content(0));
      data[(70 * 2 + 1) * 8 + 3] = was;
    }
    cache.attend(part_of(input, 30, 70)), calm.attend(part_of(input, 30, 70));
    CHECK(cache.sequence().content(0) == calm.sequence().content(0));
  }
}

TEST_CASE("Any flipped byte of a group's range changes the output") {
  const KvShape shape = {1, 2, 2, 8};
  for (const std::string recipe : {"K=int3:key=channel-group,group=16/V=int3:value=token-group,group=4",
                                   "int3:zero=integer,key=token-group,value=token-group,group=8"}) {
    INFO(recipe);
    const auto pool = std::make_shared<PackedPool>(random_quantizer(recipe, shape, 7));
    PackedSequence sequence(pool);
    Rng rng(8);
    const AttentionInput input = random_input(shape, 0, 64, rng);
    sequence.append(0, numbers(input.key), numbers(input.value), 1);
    sequence.release(0);
    const std::vector<float> before = answer(sequence, 0, input.query);
    auto* bytes = const_cast<std::uint8_t*>(sequence.page(0, 0));
    for (const Side side : kSides) {
      const layout::SideShape& part = pool->layer(0).shape(side);
      int unchanged = 0;
      for (std::int64_t byte = 0; byte < part.range_bytes(); ++byte) {
        bytes[pool->layer(0).parts(side).ranges + byte] ^= 0x06;
        unchanged += answer(sequence, 0, input.query) == before;
        bytes[pool->layer(0).parts(side).ranges + byte] ^= 0x06;
      }
      CHECK(part.range_bytes() > 0);
      CHECK(unchanged <= part.range_bytes() / 5);  // the exact first token's ranges, and constant channels' scales
    }
  }
}

TEST_CASE("What no packed cache holds is refused by name") {
  for (const std::string recipe : {"delta3", "scalar4:entropy=rans", "kivi2:group=128,recent=128",
                                   "K=int4-5%:key=channel-group,group=32/V=int4", "none:evict=snapkv,budget=512"}) {
    INFO(recipe);
    try {
      PackedPool pool(random_quantizer(recipe, {1, 2, 2, 32}, 1));
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK_THAT(error.what(), ContainsSubstring("recipe '"));
    }
  }
}
