// Packed bytes and attention over them against kernels/reference, which decodes bit by bit in double precision.
#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "support/catch.h"

#include <kvq/cache/packed_attention.h>

using namespace kvq;
using namespace kvq::test;

namespace {

struct Lengths {
  KvShape shape;
  std::string recipe;
  std::vector<std::int64_t> lengths;
  double rate = 0.02;
  double wider = 1.0;  ///< times the usual tolerance: fp32 rotations of values here, double ones in the reference
};

/// Largest difference of the decoded values and of the answers to the last `queries` positions.
std::pair<double, double> differences(const Lengths& test, std::int64_t length, std::int64_t queries, bool all_outliers,
                                      SimdLevel level = best_simd_level()) {
  const auto quantizer = random_quantizer(test.recipe, test.shape, 3, test.rate);
  quantizer->rope.theta = 100000.0;
  const auto pool = std::make_shared<PackedPool>(quantizer, level);
  PackedSequence sequence(pool);
  Rng rng(static_cast<std::uint64_t>(length) + 11);
  const AttentionInput input = random_input(test.shape, 0, length, rng);
  if (all_outliers) {  // one token beyond every threshold, among ordinary ones
    const std::int64_t token = length / 2, width = test.shape.width();
    for (std::int64_t channel = 0; channel < width; ++channel) {
      input.key.mutable_data_ptr<float>()[token * width + channel] = channel % 2 ? 4.0f : -5.0f;
    }
  }
  sequence.append(0, numbers(input.key), numbers(input.value), 1);
  const AttentionInput last = part_of(input, length - queries, queries);
  std::vector<float> out(static_cast<std::size_t>(last.query.numel()));
  PackedAttention(2).attend(sequence, 0, numbers(last.query), out);

  const std::vector<double> keys = reference_decode(sequence, 0, Side::Key);
  const std::vector<double> values = reference_decode(sequence, 0, Side::Value);
  std::vector<double> encoder_says[2];
  for (const Side side : kSides) {
    at::Tensor x = (side == Side::Key ? input.key : input.value).clone();
    const std::span<float> all(x.mutable_data_ptr<float>(), static_cast<std::size_t>(x.numel()));
    const auto exact =
        std::min<std::size_t>(all.size(), static_cast<std::size_t>(quantizer->recipe.sinks * test.shape.width()));
    const SideEncoder encoder(quantizer->layers[0].side(side));
    encoder.round_exact(all.first(exact));
    encoder.round_trip(all.subspan(exact), 1);
    encoder_says[static_cast<int>(side)] = doubles(x);
  }
  const double decoded =
      std::max(largest_difference(keys, encoder_says[0]), largest_difference(values, encoder_says[1]));
  const reference::Heads heads{test.shape.heads, test.shape.kv_heads, test.shape.head_dim};
  const reference::Rope rope{quantizer->rope.inverse_frequencies(), quantizer->recipe.key.post_rope};
  const std::vector<double> expected =
      reference::attention(heads, doubles(last.query.contiguous()), length - queries, keys, values, rope);
  return {decoded, largest_difference(expected, {out.begin(), out.end()})};
}

}  // namespace

TEST_CASE("Packed pages and attention over them agree with the double-precision reference") {
  const std::vector<std::int64_t> lengths = {1, 15, 16, 17, 63, 64, 65, 300};
  const std::vector<Lengths> tests = {
      {{1, 9, 3, 64}, "nuq4-2%", lengths},
      {{1, 8, 2, 128}, "nuq3-2%:qnorm,sink=4", lengths},
      {{1, 4, 4, 80}, "K=nuq2-2%/V=nuq5-2%:share=head", lengths},
      {{1, 2, 1, 96}, "int8-2%:key=token", lengths},
      {{1, 3, 3, 256}, "nuq1-2%:cap=5%", lengths},
      {{1, 2, 2, 512}, "nuq6-2%:value=channel", {1, 65}},  // channels and counts of 2 bytes
      {{1, 20, 1, 20}, "nf7", lengths},  // no outliers; 20 queries a kv head; head_dim no multiple of 16
      {{1, 4, 2, 64}, "nuq4-2%:rope=post,sink=0", lengths},
      {{1, 4, 2, 64}, "nuq3-10%:value=channel", {17, 130}, 0.2},  // long chains of overflow blocks
      {{1, 6, 2, 64}, "kvq2", {1, 15, 65, 192, 300}, 0.02, 8.0},
      {{1, 4, 2, 80}, "kvq1.5:sink=4", {17, 63, 66}, 0.02, 8.0},  // widths of 0 bits; rotations in blocks of 16
      {{1, 3, 1, 128}, "K=nuq3-2%:widths=pair/V=nuq4-2%:levels=20,rotate=hadamard,sink=0", {64, 127}, 0.02, 8.0},
      {{1, 2, 2, 20}, "nuq3-2%:levels=10,share=head", lengths},  // head_dim no multiple of 16; rows share bytes
      {{1, 2, 2, 12}, "K=nuq2/V=nuq1:levels=3,value=channel", lengths},
  };
  for (const Lengths& test : tests) {
    for (const std::int64_t length : test.lengths) {
      for (const bool all_outliers : {false, true}) {
        INFO(test.recipe << ", " << length << " tokens" << (all_outliers ? ", one all outliers" : ""));
        const auto [decoded, answered] = differences(test, length, 1, all_outliers);
        CHECK(decoded < 5e-7 * test.wider);
        CHECK(answered < 3e-6 * test.wider);
      }
    }
    INFO(test.recipe << ", many queries");
    CHECK(differences(test, 130, 100, true).second <
          3e-6 * test.wider);  // over a prefix, page borders among the queries
    CHECK(differences(test, 65, 65, false).second < 3e-6 * test.wider);
  }
}

TEST_CASE("Long contexts: 4097 tokens, split over pages and merged") {
  for (const std::string recipe : {"nuq4-2%", "int2-2%:key=token"}) {
    const Lengths test{{1, 6, 2, 64}, recipe, {}};
    const auto [decoded, answered] = differences(test, 4097, 1, true);
    CHECK(decoded < 5e-7);
    CHECK(answered < 1e-6);
    CHECK(differences(test, 4097, 3, false).second < 1e-6);
  }
}

TEST_CASE("Every instruction set gives the reference's answers") {
  for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best_simd_level()) continue;
    for (const std::string recipe : {"nuq1-2%", "nuq2-2%", "nuq3", "nuq4-2%", "nuq5", "nuq6", "nuq7", "nuq8-2%",
                                     "kvq1.5", "kvq2", "kvq3", "kvq4"}) {
      INFO(recipe << ", level " << static_cast<int>(level));
      const Lengths test{{1, 4, 2, 48}, recipe, {}};
      const double wider = recipe[0] == 'k' ? 8.0 : 1.0;
      CHECK(differences(test, 100, 1, false, level).second < 3e-6 * wider);
      CHECK(differences(test, 100, 60, true, level).second < 3e-6 * wider);
    }
  }
}

TEST_CASE("Angles stay exact at 128K tokens and beyond") {
  // Only positions matter, so the keys in between can be few: pages of zeros would do, but the cache has no gaps. One
  // kv head of 8 channels keeps 200000 tokens small.
  const KvShape shape = {1, 1, 1, 8};
  const auto quantizer = random_quantizer("int8:sink=0", shape, 3);
  quantizer->rope.theta = 1e6;
  const auto pool = std::make_shared<PackedPool>(quantizer);
  PackedSequence sequence(pool);
  Rng rng(4);
  constexpr std::int64_t kLength = 200000;
  const AttentionInput input = random_input(shape, 0, kLength, rng);
  // Queries that look at few tokens: a hundred times as large.
  input.query.mul_(100.0);
  sequence.append(0, numbers(input.key), numbers(input.value), 2);
  const std::vector<double> keys = reference_decode(sequence, 0, Side::Key);
  const std::vector<double> values = reference_decode(sequence, 0, Side::Value);
  for (const std::int64_t queries : {1, 9}) {  // few are answered by short ranges of pages, many by long ones
    const AttentionInput last = part_of(input, kLength - queries, queries);
    std::vector<float> out(static_cast<std::size_t>(8 * queries));
    PackedAttention(2).attend(sequence, 0, numbers(last.query), out);
    const std::vector<double> expected =
        reference::attention({1, 1, 8}, doubles(last.query.contiguous()), kLength - queries, keys, values,
                             {quantizer->rope.inverse_frequencies(), false});
    CHECK(largest_difference(expected, {out.begin(), out.end()}) < 2e-4);  // scores near 100: 1e-5 of fp32 in each
  }
}

TEST_CASE("The number of threads changes nothing") {
  const KvShape shape = {1, 8, 2, 64};
  const auto pool = std::make_shared<PackedPool>(random_quantizer("nuq4-2%", shape, 3));
  PackedSequence one(pool), two(pool);
  Rng rng(5);
  const AttentionInput input = random_input(shape, 0, 700, rng);
  one.append(0, numbers(input.key), numbers(input.value), 1);
  two.append(0, numbers(input.key), numbers(input.value), 2);
  CHECK(one.content(0) == two.content(0));
  for (const std::int64_t queries : {1, 700}) {
    const at::Tensor query = input.query.narrow(0, 700 - queries, queries).contiguous();
    std::vector<float> a(static_cast<std::size_t>(query.numel())), b = a;
    PackedAttention(1).attend(one, 0, numbers(query), a);
    PackedAttention(2).attend(two, 0, numbers(query), b);
    CHECK(a == b);
  }
}
