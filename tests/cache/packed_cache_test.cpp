#include <kvq/cache/packed_cache.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "support/catch.h"

#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::int64_t kTokens = 150;

}  // namespace

TEST_CASE("Every recipe: the packed cache says what the simulated one says, and occupies what that one counts") {
  const KvShape shape = {2, 6, 3, 16};
  std::uint64_t seed = 1;
  for (const std::string& recipe : many_recipes()) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, shape, ++seed);
    const std::vector<AttentionInput> window = random_window(shape, kTokens, 100 + seed);
    SimulatedCache simulated(quantizer, 2);
    PackedCache packed(quantizer, 2);
    const at::Tensor expected = run(simulated, window, {kTokens}), result = run(packed, window, {kTokens});
    CHECK(largest_difference(doubles(expected), doubles(result)) < 3e-6);
    CHECK(packed.tokens() == kTokens);
    CHECK(packed.bytes() == simulated.footprint().total());
    // The decoded keys and values are the same bits: what the simulated cache decodes comes from the same codes.
    for (const Side side : kSides) {
      const SideEncoder encoder(quantizer->layers[1].side(side));
      at::Tensor x = (side == Side::Value ? window[1].value : window[1].key).clone();
      if (side == Side::Key && quantizer->recipe.key.post_rope)
        x = RopeTables(quantizer->rope).of(1).apply(x, 0).contiguous();
      const auto sinks = static_cast<std::size_t>(quantizer->recipe.sinks * shape.width());
      const std::span<float> all(x.mutable_data_ptr<float>(), static_cast<std::size_t>(x.numel()));
      encoder.round_exact(all.first(sinks));
      encoder.round_trip(all.subspan(sinks), 1);
      const PackedSequence& sequence = packed.sequence();
      const SideDecoder& decoder = sequence.pool().layer(1).decoder(side);
      std::vector<float> block(16 * 64), decoded(all.size());
      for (std::int64_t page = 0; page < 3; ++page) {
        const int slots = static_cast<int>(std::min<std::int64_t>(64, kTokens - 64 * page));
        OpenPage open;
        decoder.open(sequence.page(1, page), slots, 0, 3,
                     page == 0 ? sequence.sinks(1, side) : std::span<const std::uint16_t>(), sequence.pool().overflow(),
                     open);
        for (int kv_head = 0; kv_head < 3; ++kv_head) {
          decoder.decode(open, kv_head, block.data());
          for (int slot = 0; slot < slots; ++slot) {
            for (int channel = 0; channel < 16; ++channel) {
              decoded[static_cast<std::size_t>((64 * page + slot) * 48 + kv_head * 16 + channel)] =
                  block[static_cast<std::size_t>(channel * 64 + slot)];
            }
          }
        }
      }
      const SideQuantizer& part = quantizer->layers[1].side(side);
      const bool rotated = part.recipe.rotation != Rotation::None;
      if (rotated) HeadRotation(part.rotation_scale, 3, 16).inverse(decoded);
      const std::size_t same_from = rotated ? sinks : 0;  // exact tokens are rotated to be summed with the others
      CHECK(std::equal(decoded.begin() + static_cast<std::ptrdiff_t>(same_from), decoded.end(),
                       all.begin() + static_cast<std::ptrdiff_t>(same_from)));
      for (std::size_t index = 0; index < same_from; ++index) CHECK(std::abs(decoded[index] - all[index]) < 2e-6f);
    }
  }
}

TEST_CASE("The bytes do not depend on how tokens were cut into calls") {
  std::uint64_t seed = 50;
  for (const KvShape& shape : {KvShape{2, 4, 2, 8}, KvShape{1, 5, 5, 64}}) {  // 5 * 64: counts in two groups
    for (const std::string& recipe : many_recipes()) {
      INFO(recipe);
      const auto quantizer = random_quantizer(recipe, shape, ++seed, 0.05);
      const std::vector<AttentionInput> window = random_window(shape, kTokens, 100 + seed);
      PackedCache whole(quantizer, 2);
      const at::Tensor expected = run(whole, window, {kTokens});
      for (const std::int64_t size : {1, 7, 64, 100}) {
        PackedCache pieces(quantizer, 1);
        const at::Tensor result = run(pieces, window, equal_parts(kTokens, size));
        CHECK(largest_difference(doubles(expected), doubles(result)) < 3e-6);
        CHECK(pieces.bytes() == whole.bytes());
        for (int layer = 0; layer < shape.layers; ++layer) {
          CHECK(pieces.sequence().content(layer) == whole.sequence().content(layer));
        }
      }
    }
  }
}

TEST_CASE("The packed bytes are what is read: any one that is flipped changes the output") {
  const KvShape shape = {1, 2, 2, 8};
  for (const std::string recipe : {"nuq3-3%:sink=0", "int4-3%:key=token,sink=0", "int2-3%:value=channel,sink=0"}) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, shape, 7, 0.05);
    auto pool = std::make_shared<PackedPool>(quantizer);
    PackedSequence sequence(pool);
    Rng rng(8);
    const AttentionInput input = random_input(shape, 0, 64, rng);
    sequence.append(0, numbers(input.key), numbers(input.value), 1);
    const auto says = [&] { return answer(sequence, 0, input.query); };
    const std::vector<float> before = says();
    const layout::PageLayout& page = pool->layer(0).page;
    auto* bytes = const_cast<std::uint8_t*>(sequence.page(0, 0));
    int unchanged = 0, flipped = 0;
    const auto flip = [&](std::int64_t offset, std::uint8_t bit) {
      bytes[offset] ^= bit;
      ++flipped;
      unchanged += says() == before;
      bytes[offset] ^= bit;
    };
    // Codes: under an outlier they say nothing, so a few of them may change nothing; a bit may move a code of a
    // constant channel. Every byte holds the codes of several tokens.
    for (std::int64_t offset = 0; offset < page.value_parts.codes + page.value.code_bytes(); ++offset)
      flip(offset, 0xff);
    CHECK(unchanged <= flipped / 6);  // channel 5 of 8 is constant
    CHECK(flipped == page.key.code_bytes() + page.value.code_bytes());
    for (const Side side : kSides) {
      const layout::SideShape& part = pool->layer(0).shape(side);
      const layout::SideParts& parts = pool->layer(0).parts(side);
      flipped = unchanged = 0;
      if (part.token_ranges) {
        for (int byte = 0; byte < 256; ++byte) flip(parts.ranges + byte, 0x02);
        CHECK(unchanged == 0);
      }
      for (std::int64_t entry = 0; entry < std::min<std::int64_t>(part.page_entries(), 8); ++entry) {
        flip(parts.outlier_values + 2 * entry + 1, 0x01);
        flip(parts.outlier_channels + entry, 0x01);
        flip(parts.outlier_tokens + 6 * entry / 8, static_cast<std::uint8_t>(1 << (6 * entry % 8)));
      }
      CHECK(unchanged == 0);
      CHECK(flipped >= 16);
    }
    CHECK(says() == before);
  }
}

TEST_CASE("Half-precision models get their dtype back; keys and values are encoded in fp32") {
  const KvShape shape = {1, 4, 2, 16};
  const auto quantizer = random_quantizer("nuq4-2%", shape, 3);
  const std::vector<AttentionInput> window = random_window(shape, 70, 5);
  std::vector<AttentionInput> half = window;
  for (AttentionInput& layer : half) {
    layer.query = layer.query.to(at::kBFloat16), layer.key = layer.key.to(at::kBFloat16);
    layer.value = layer.value.to(at::kBFloat16);
  }
  SimulatedCache simulated(quantizer, 1);
  PackedCache packed(quantizer, 1);
  const at::Tensor expected = run(simulated, half, {70}), result = run(packed, half, {70});
  CHECK(result.scalar_type() == at::kBFloat16);
  CHECK(largest_difference(doubles(expected.to(at::kFloat)), doubles(result.to(at::kFloat))) < 1e-2);
  CHECK(packed.bytes() == simulated.footprint().total());
}

TEST_CASE("What is no cache is refused, and so are other shapes") {
  const KvShape shape = {1, 2, 2, 8};
  const auto kind_of = [](auto&& work) {
    try {
      work();
    } catch (const Error& error) {
      return std::pair(error.kind(), std::string(error.what()));
    }
    return std::pair(ErrorKind::Io, std::string("accepted"));
  };
  const auto [window_kind, window_text] =
      kind_of([&] { PackedCache(random_quantizer("int4:range=window", shape, 1), 1); });
  CHECK(window_kind == ErrorKind::Usage);
  CHECK_THAT(window_text, ContainsSubstring("range=window"));
  auto uneven = random_quantizer("K=nuq2:widths=pair/V=nuq2", shape, 1);
  uneven->layers[0].key.widths.assign(16, 3);
  const auto [uneven_kind, uneven_text] = kind_of([&] { PackedCache(uneven, 1); });
  CHECK(uneven_kind == ErrorKind::Mismatch);
  CHECK_THAT(uneven_text, ContainsSubstring("24 bits for the channels of kv head 0"));
  CHECK(kind_of([&] { PackedCache(random_quantizer("none", shape, 1), 1); }).first == ErrorKind::Usage);
  auto other = random_quantizer("int4", shape, 1);
  other->layers.clear();
  CHECK(kind_of([&] { PackedCache(other, 1); }).first == ErrorKind::Mismatch);
  auto narrow = random_quantizer("int4", shape, 1);
  narrow->layers[0].value.head_dim = 4;
  CHECK(kind_of([&] { PackedCache(narrow, 1); }).first == ErrorKind::Mismatch);
  PackedCache cache(random_quantizer("int4", shape, 1), 1);
  Rng rng(1);
  AttentionInput input = random_input({1, 2, 1, 8}, 0, 3, rng);
  CHECK(kind_of([&] { cache.attend(input); }).first == ErrorKind::Mismatch);
  input = random_input(shape, 0, 3, rng);
  input.key.mutable_data_ptr<float>()[20] = std::nanf("");
  CHECK(kind_of([&] { cache.attend(input); }).first == ErrorKind::Numeric);
  CHECK(cache.bytes() == 0);
}

TEST_CASE("A value that fits no fp16 stops with its place, and leaves the cache as it was") {
  const KvShape shape = {1, 2, 2, 8};
  const auto quantizer = random_quantizer("int4-5%:sink=2", shape, 1);
  for (const std::int64_t token : {1, 40, 120}) {
    for (const bool in_key : {true, false}) {
      Rng rng(9);
      AttentionInput input = random_input(shape, 0, kTokens, rng);
      PackedCache cache(quantizer, 2), calm(quantizer, 2);
      const std::int64_t before = token == 1 ? 0 : 30;
      if (before) cache.attend(part_of(input, 0, before)), calm.attend(part_of(input, 0, before));
      float* data = (in_key ? input.key : input.value).mutable_data_ptr<float>();
      const float was = std::exchange(data[(token * 2 + 1) * 8 + 3], -7e4f);
      try {
        cache.attend(part_of(input, before, kTokens - before));
        FAIL("accepted");
      } catch (const Error& error) {
        INFO(error.what());
        CHECK(error.kind() == ErrorKind::Numeric);
        CHECK_THAT(error.what(), ContainsSubstring("layer 0: " + std::string(in_key ? "key" : "value") + " of token " +
                                                   std::to_string(token) + ", head 1, channel 3 is"));
      }
      CHECK(cache.tokens() == before);
      CHECK(cache.bytes() == calm.bytes());
      CHECK(cache.sequence().content(0) == calm.sequence().content(0));
      data[(token * 2 + 1) * 8 + 3] = was;
      cache.attend(part_of(input, before, kTokens - before));
      calm.attend(part_of(input, before, kTokens - before));
      CHECK(cache.sequence().content(0) == calm.sequence().content(0));
    }
  }
}
