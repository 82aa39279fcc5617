#include <kvq/cache/packed_sequence.h>

#include <memory>
#include <optional>
#include <vector>

#include "cache/packed_support.h"
#include "support/catch.h"

#include <kvq/cache/packed_attention.h>
#include <kvq/quant/footprint.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const KvShape kShape = {2, 4, 2, 16};

void append(PackedSequence& sequence, const AttentionInput& input, std::int64_t first, std::int64_t count) {
  const AttentionInput part = part_of(input, first, count);
  for (int layer = 0; layer < kShape.layers; ++layer) sequence.append(layer, numbers(part.key), numbers(part.value), 1);
}

std::vector<float> last_answer(const PackedSequence& sequence, const AttentionInput& input) {
  return answer(sequence, 1, part_of(input, sequence.length() - 1, 1).query);
}

std::int64_t exact_bytes(const PackedSequence& sequence) {
  std::int64_t bytes = 0;
  for (int layer = 0; layer < kShape.layers; ++layer) {
    for (const Side side : kSides) bytes += 2 * static_cast<std::int64_t>(sequence.sinks(layer, side).size());
  }
  return bytes;
}

}  // namespace

TEST_CASE("A cropped sequence is one to which the rest was never appended") {
  std::uint64_t seed = 20;
  for (const std::string& recipe : many_recipes()) {
    INFO(recipe);
    const auto pool = std::make_shared<PackedPool>(random_quantizer(recipe, kShape, ++seed, 0.06));
    Rng rng(seed);
    const AttentionInput input = random_input(kShape, 0, 200, rng);
    for (const std::int64_t kept : {0, 1, 3, 17, 63, 64, 65, 127, 150, 199, 200}) {
      PackedSequence cropped(pool), plain(pool);
      append(cropped, input, 0, 200);
      cropped.crop(kept);
      if (kept > 0) append(plain, input, 0, kept);
      CHECK(cropped.length() == kept);
      CHECK(cropped.bytes() == plain.bytes());
      for (int layer = 0; layer < kShape.layers; ++layer) CHECK(cropped.content(layer) == plain.content(layer));
      // And it goes on as one.
      append(cropped, input, kept, 200 - kept);
      append(plain, input, kept, 200 - kept);
      for (int layer = 0; layer < kShape.layers; ++layer) CHECK(cropped.content(layer) == plain.content(layer));
    }
    CHECK(pool->taken_bytes() == 0);
  }
}

TEST_CASE("The allocator has handed out exactly what is counted") {
  std::uint64_t seed = 40;
  for (const std::string& recipe : many_recipes()) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, kShape, ++seed, 0.06);
    const auto pool = std::make_shared<PackedPool>(quantizer);
    PackedSequence sequence(pool);
    Rng rng(seed);
    const AttentionInput input = random_input(kShape, 0, 200, rng);
    for (const std::int64_t more : {1, 2, 60, 1, 1, 35, 100}) {
      const std::int64_t before = sequence.length();
      append(sequence, input, before, more);
      const std::int64_t length = before + more;
      const std::int64_t table = 4 * kShape.layers * layout::pages(length);
      CHECK(sequence.bytes() == pool->taken_bytes() + exact_bytes(sequence) + table);
      CHECK(pool->reserved_bytes() >= pool->taken_bytes());
      // Counted from the outliers of each token, as the simulated cache does.
      std::vector<std::uint32_t> outliers[2];
      for (int layer = 0; layer < kShape.layers; ++layer) {
        for (const Side side : kSides) {
          std::vector<std::uint32_t> counts(static_cast<std::size_t>(length), 0);
          const auto sinks = std::min<std::int64_t>(quantizer->recipe.sinks, length);
          const AttentionInput part = part_of(input, sinks, length - sinks);
          EncodedTokens encoded;
          SideEncoder(quantizer->layers[static_cast<std::size_t>(layer)].side(side))
              .encode(numbers((side == Side::Key ? part.key : part.value).contiguous()), encoded);
          for (std::int64_t token = sinks; token < length; ++token) {
            counts[static_cast<std::size_t>(token)] =
                encoded.outlier_begin[static_cast<std::size_t>(token - sinks) + 1] -
                encoded.outlier_begin[static_cast<std::size_t>(token - sinks)];
          }
          auto& all = outliers[static_cast<int>(side)];
          all.insert(all.end(), counts.begin(), counts.end());
        }
      }
      CHECK(sequence.bytes() == measured_footprint(*quantizer, length, {outliers[0], outliers[1]}).total());
    }
  }
}

TEST_CASE("Sequences of unequal length live side by side; what one gives back the next one takes") {
  const auto pool = std::make_shared<PackedPool>(random_quantizer("nuq3-3%:sink=2", kShape, 5, 0.1));
  Rng rng(6);
  const AttentionInput a = random_input(kShape, 0, 300, rng), b = random_input(kShape, 0, 300, rng),
                       c = random_input(kShape, 0, 300, rng);
  std::optional<PackedSequence> first(pool), second(pool), third(pool);
  for (std::int64_t step = 0; step < 10; ++step) {  // interleaved: pages and blocks alternate
    append(*first, a, 10 * step, 10);
    append(*second, b, 30 * step, 30);
    append(*third, c, step, 1);
  }
  const std::vector<float> says_second = last_answer(*second, b), says_third = last_answer(*third, c);
  const std::vector<std::uint8_t> holds_second = second->content(1);
  const std::uint8_t* where = second->page(1, 3);
  const std::int64_t reserved = pool->reserved_bytes();
  first.reset();
  CHECK(second->page(1, 3) == where);
  CHECK(second->content(1) == holds_second);
  CHECK(last_answer(*second, b) == says_second);

  PackedSequence fourth(pool), alone(std::make_shared<PackedPool>(random_quantizer("nuq3-3%:sink=2", kShape, 5, 0.1)));
  append(fourth, a, 0, 100);
  append(alone, a, 0, 100);
  CHECK(pool->reserved_bytes() == reserved);  // no memory that was not there before
  for (int layer = 0; layer < kShape.layers; ++layer) CHECK(fourth.content(layer) == alone.content(layer));
  CHECK(last_answer(*second, b) == says_second);
  CHECK(last_answer(*third, c) == says_third);
  CHECK(last_answer(fourth, a) == last_answer(alone, a));

  PackedSequence moved = std::move(fourth);
  CHECK(moved.length() == 100);
  fourth = std::move(moved);
  second.reset();
  third.reset();
  CHECK(pool->taken_bytes() + 4 * 2 * kShape.layers + exact_bytes(fourth) == fourth.bytes());
  fourth.crop(0);
  CHECK(pool->taken_bytes() == 0);
  CHECK(fourth.bytes() == 0);
}

TEST_CASE("Blocks of a pool are zero when they are taken, stay where they are, and are used again") {
  BlockPool pool(24, 4);
  std::vector<std::uint8_t*> where;
  for (std::uint32_t block = 0; block < 9; ++block) {
    CHECK(pool.take() == block);
    where.push_back(pool.data(block));
    for (int byte = 0; byte < 24; ++byte) {
      CHECK(where.back()[byte] == 0);
      where.back()[byte] = static_cast<std::uint8_t>(block + 1);
    }
  }
  CHECK(pool.taken() == 9);
  CHECK(pool.block_bytes() == 24);
  CHECK(pool.reserved_bytes() == 3 * (4 * 24 + BlockPool::kReadable));
  for (std::uint32_t block = 0; block < 9; ++block) {
    CHECK(pool.data(block) == where[block]);
    CHECK(where[block][23] == block + 1);
  }
  pool.give_back(3);
  pool.give_back(7);
  CHECK(pool.taken() == 7);
  CHECK(pool.take() == 7);
  CHECK(where[7][0] == 0);
  CHECK(pool.take() == 3);
  CHECK(pool.take() == 9);
}
