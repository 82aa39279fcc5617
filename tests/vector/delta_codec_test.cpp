// Delta coding against an independent decoding in double, its gain on a correlated sequence, and damage.

#include <cmath>

#include <kvq/core/half.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/delta_codec.h>
#include <kvq/vector/vector_recipe.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

const std::vector<float> kDeltaLevels = {-1.0f, -0.3f, 0.3f, 1.0f};
const std::vector<float> kAnchorLevels = {-1.0f, -0.7f, -0.4f, -0.1f, 0.1f, 0.4f, 0.7f, 1.0f};

DeltaCodec small_codec(int anchor, float threshold) {
  return DeltaCodec(std::make_shared<ScalarCodec>(8, RowScale::Max, kDeltaLevels),
                    std::make_shared<ScalarCodec>(8, RowScale::Max, kAnchorLevels), {anchor, threshold});
}

/// Reads the bytes with nothing of the codecs, 8 channels, in double.
std::vector<double> by_hand(const std::vector<std::byte>& bytes, int rows, int anchor, int& anchors) {
  std::vector<double> x;
  std::size_t at = 0, flags = 0;
  for (int row = 0; row < rows; ++row) {
    if (row % anchor == 0) {
      flags = at;
      at += static_cast<std::size_t>((std::min(anchor, rows - row) + 7) / 8);
    }
    const bool alone =
        (static_cast<int>(bytes[flags + static_cast<std::size_t>(row % anchor / 8)]) >> (row % anchor % 8)) & 1;
    anchors += alone;
    const double scale =
        half_to_float(static_cast<std::uint16_t>(static_cast<int>(bytes[at]) | static_cast<int>(bytes[at + 1]) << 8));
    const int bits = alone ? 3 : 2;
    for (int channel = 0; channel < 8; ++channel) {
      int code = 0;
      for (int bit = 0; bit < bits; ++bit) {
        const int position = channel * bits + bit;
        code |= (static_cast<int>(bytes[at + 2 + static_cast<std::size_t>(position / 8)]) >> (position % 8) & 1) << bit;
      }
      const double level = static_cast<double>(alone ? kAnchorLevels[static_cast<std::size_t>(code)]
                                                     : kDeltaLevels[static_cast<std::size_t>(code)]);
      x.push_back(level * scale + (alone ? 0.0 : x[x.size() - 8]));
    }
    at += 2 + static_cast<std::size_t>(bits);
  }
  CHECK(at == bytes.size());
  return x;
}

}  // namespace

TEST_CASE("Delta rows decode step by step to what an independent reading in double gives") {
  auto x = correlated(75, 8, 0.95, 3);
  for (std::size_t at = 40 * 8; at < 41 * 8; ++at) x[at] *= -3;  // a jump: an anchor in the middle of a block
  for (const int anchor : {1, 7, 16, 200}) {
    const DeltaCodec codec = small_codec(anchor, 0.9f);
    CHECK(codec.block_rows() == anchor);
    const auto bytes = encoded(codec, x);
    int anchors = 0;
    const auto expected = by_hand(bytes, 75, anchor, anchors);
    CHECK(anchors > (75 + anchor - 1) / anchor - (anchor == 1));
    const auto found = decoded(codec, bytes, x.size());
    for (std::size_t at = 0; at < x.size(); ++at)
      CHECK(static_cast<double>(found[at]) == Approx(expected[at]).margin(1e-5));
  }
}

TEST_CASE("Deltas are taken against reconstructed predecessors, so errors do not add up") {
  const auto x = correlated(512, 8, 0.99, 4);
  const auto found = restored(small_codec(512, 10.0f), x);
  const auto early =
      squared_error(std::span<const float>(x).subspan(8, 64 * 8), std::span<const float>(found).subspan(8, 64 * 8));
  const auto late = squared_error(std::span<const float>(x).last(64 * 8), std::span<const float>(found).last(64 * 8));
  CHECK(late < 2 * early);
}

TEST_CASE("Threshold 0 makes every row that changed an anchor; a large one none but the first") {
  const auto x = correlated(64, 8, 0.9, 5);
  int anchors = 0;
  by_hand(encoded(small_codec(64, 0.0f), x), 64, 64, anchors);
  CHECK(anchors == 64);
  anchors = 0;
  by_hand(encoded(small_codec(64, 1e6f), x), 64, 64, anchors);
  CHECK(anchors == 1);
  const std::vector<float> zeros(64 * 8, 0.0f);
  anchors = 0;
  by_hand(encoded(small_codec(64, 0.5f), zeros), 64, 64, anchors);
  CHECK(anchors == 1);
  CHECK(restored(small_codec(64, 0.5f), zeros) == zeros);
}

TEST_CASE("On a sequence that hardly changes, deltas take a fraction of the error at equal bits") {
  const auto x = correlated(2048, 64, 0.98, 6);
  VectorSample sample;
  sample.x = x;
  const auto delta = make_codec(parse_vector_recipe("delta3:anchor=128"), 64, sample);
  const auto scalar = make_codec(parse_vector_recipe("scalar3"), 64, sample);
  // The variance of deltas is 2 (1 - 0.98) of the values', plus what the predecessor's error adds.
  CHECK(squared_error(x, restored(*scalar, x)) > 10 * squared_error(x, restored(*delta, x)));
  CHECK(encoded(*delta, x).size() == encoded(*scalar, x).size() + 2048 / 8);
}

TEST_CASE("Blocks of delta rows can be read without the others") {
  const auto x = correlated(40, 8, 0.9, 7);
  const DeltaCodec codec = small_codec(16, 100.0f);
  const auto all = encoded(codec, x);
  const auto second = encoded(codec, std::span<const float>(x).subspan(16 * 8, 16 * 8));
  const std::size_t block = 2 + 5 + 15 * 4;  // flags, an anchor, deltas
  CHECK((std::vector<std::byte>(all.begin() + block, all.begin() + 2 * block) == second));
}

TEST_CASE("Damaged delta blocks are refused or decode to finite values") {
  const auto x = correlated(13, 8, 0.9, 8);
  const DeltaCodec codec = small_codec(8, 0.8f);
  const auto bytes = encoded(codec, x);
  std::vector<float> out(x.size());
  const int refused = damage_everywhere(bytes, [&](auto damaged) {
    codec.decode(damaged, out);
    for (const float value : out) REQUIRE(std::isfinite(value));
  });
  CHECK(refused >= static_cast<int>(bytes.size()) + 2 + 3);  // truncations, first anchors, padding of flags
}

TEST_CASE("What a delta row cannot hold names the row") {
  auto x = correlated(5, 8, 0.9, 9);
  x[3 * 8 + 2] = 1e30f;
  std::vector<std::byte> bytes;
  CHECK_THROWS_WITH(small_codec(8, 1.0f).encode(x, bytes), ContainsSubstring("row 3"));
  x[3 * 8 + 2] = INFINITY;
  CHECK_THROWS_WITH(small_codec(8, 1.0f).encode(x, bytes), ContainsSubstring("row 3, channel 2"));
}
