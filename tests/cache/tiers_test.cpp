// Caches with tiers against a decode loop that is written for the test (tiers_loop.h).

#include "cache/tiers_loop.h"

using namespace kvq;
using namespace kvq::test;

namespace {

struct Seen {
  int falls = 0, returns = 0, drops = 0;
};

/// All at once, in pieces of 7 and one by one: the outcome of the loop, and the same bits each time.
Seen check_tiers(const std::string& recipe, std::uint64_t seed, const Rule& rule) {
  INFO(recipe);
  const std::vector<AttentionInput> text = random_text(seed);
  const auto quantizer = tiered_quantizer(recipe);
  SimulatedCache all(quantizer, 2), sevens(quantizer, 1), ones(quantizer, 2);
  Seen seen;
  for (int layer = 0; layer < kLayers; ++layer) {
    INFO("layer " << layer);
    const Outcome outcome = tiers_loop(text[layer], quantizer->layers[layer], rule);
    const at::Tensor at_once = run_in_pieces(all, text[layer], kTokens);
    CHECK(difference(at_once, outcome.result) < 2e-5);
    CHECK(difference(run_in_pieces(sevens, text[layer], 7), at_once) == 0.0);
    CHECK(difference(run_in_pieces(ones, text[layer], 1), at_once) == 0.0);
    CHECK(all.tiers(layer) == outcome.tiers);
    CHECK(sevens.tiers(layer) == outcome.tiers);
    CHECK(ones.tiers(layer) == outcome.tiers);
    for (const Side side : kSides) {
      const at::Tensor held = all.held(layer, side);
      if (rule.shares.back() == 1.0) CHECK(difference(held, outcome.held[static_cast<int>(side)]) < 2e-6);
      CHECK(difference(held, ones.held(layer, side)) == 0.0);
    }
    seen.falls += outcome.falls, seen.returns += outcome.returns, seen.drops += outcome.drops;
  }
  CHECK(all.footprint() == sevens.footprint());
  CHECK(all.footprint() == ones.footprint());
  all.reset();  // and again from the beginning
  run_in_pieces(all, text[0], 50);
  CHECK(all.tiers(0) == ones.tiers(0));
  return seen;
}

}  // namespace

TEST_CASE("Tokens fall by received attention, re-encoded from their codes, as a loop over lists has it") {
  const Seen two = check_tiers("adaptive:hi=4,lo=2,newest=8", 1, {{0.25, 1.0}, 8, 1});
  CHECK(two.falls > 200);
  CHECK(two.returns == 0);
  check_tiers("nuq4-5%:lo=1,hi-share=40%,newest=20,decay=0.9,sink=3", 2, {{0.4, 1.0}, 20, 3, 0.9});
  check_tiers("int3:lo=2,newest=1,sink=0", 3, {{0.25, 1.0}, 1, 0});
  check_tiers("K=nuq4-5%:share=head,lo=2,per=head,newest=4/V=nuq4", 4, {{0.25, 1.0}, 4, 1, 1, -1, true});
}

TEST_CASE("Three tiers, tokens that come back, and tokens that are dropped, as the loop has it") {
  const Seen three =
      check_tiers("adaptive:hi=4,mid=3,lo=1,newest=8,hi-share=20%,mid-share=30%", 5, {{0.2, 0.5, 1.0}, 8, 1});
  CHECK(three.falls > 300);
  const Seen back =
      check_tiers("adaptive:hi=4,mid=3,lo=2,newest=8,decay=0.8,hysteresis=50%", 6, {{0.25, 0.5, 1.0}, 8, 1, 0.8, 0.5});
  CHECK(back.returns > 50);
  const Seen dropped =
      check_tiers("adaptive:hi=4,mid=2,lo=1,keep=60%,newest=8,per=head", 7, {{0.25, 0.5, 0.6}, 8, 1, 1, -1, true});
  CHECK(dropped.drops > 100);
  const Seen both =
      check_tiers("nuq4-2%:lo=2,keep=50%,newest=6,decay=0.7,hysteresis=0%", 8, {{0.25, 0.5}, 6, 1, 0.7, 0});
  CHECK(both.returns > 50);
  CHECK(both.drops > 100);
}

TEST_CASE("The oracle knows the weights of the whole window and encodes each token once") {
  for (const bool per_head : {false, true}) {
    const auto quantizer =
        tiered_quantizer(std::string("adaptive:hi=4,mid=3,lo=2,by=window,sink=2") + (per_head ? ",per=head" : ""));
    const std::vector<AttentionInput> text = random_text(9);
    SimulatedCache cache(quantizer, 2);
    const at::Tensor result = run_in_pieces(cache, text[1], kTokens);
    const int lists = per_head ? kKvHeads : 1, heads = kKvHeads / lists;
    std::array<std::vector<int>, kKvHeads> tier_of;  // by kv head
    for (int list = 0; list < lists; ++list) {
      std::vector<double> mass(kTokens);
      for (int head = list * heads; head < (list + 1) * heads; ++head) {
        std::vector<Row> keys;
        for (std::int64_t t = 0; t < kTokens; ++t) {
          Row key;
          std::copy_n(text[1].key.const_data_ptr<float>() + (t * kKvHeads + head) * kDim, kDim, key.begin());
          keys.push_back(turned(key, t));
          for (int query = head * kGroup; query < (head + 1) * kGroup; ++query) {
            const auto weight =
                weights_of(text[1].query.const_data_ptr<float>() + (t * kHeads + query) * kDim, t, keys);
            for (std::size_t i = 0; i < weight.size(); ++i) mass[i] += weight[i];
          }
        }
      }
      std::vector<std::int64_t> order;
      for (std::int64_t t = 2; t < kTokens; ++t) order.push_back(t);
      std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return mass[a] > mass[b]; });
      // 148 tokens: 37 and 37 of them high and in the middle.
      TierTokens expected(3, KeptTokens(1));
      for (int head = list * heads; head < (list + 1) * heads; ++head) tier_of[head].assign(kTokens, -1);
      for (std::size_t rank = 0; rank < order.size(); ++rank) {
        const int tier = rank < 37 ? 0 : rank < 74 ? 1 : 2;
        expected[static_cast<std::size_t>(tier)][0].push_back(order[rank]);
        for (int head = list * heads; head < (list + 1) * heads; ++head) tier_of[head][order[rank]] = tier;
      }
      for (std::size_t tier = 0; tier < 3; ++tier) {
        std::sort(expected[tier][0].begin(), expected[tier][0].end());
        CHECK(cache.tiers(1)[tier][static_cast<std::size_t>(list)] == expected[tier][0]);
      }
    }
    const PlainSide sides[2] = {{quantizer->layers[1].key}, {quantizer->layers[1].value}};
    for (std::int64_t t = 2; t < kTokens; ++t) {
      for (const int side : {0, 1}) {
        const float* x = (side == 0 ? text[1].key : text[1].value).const_data_ptr<float>() + t * kWidth;
        const Stored token = sides[side].store(x, {tier_of[0][t], tier_of[1][t]});
        const at::Tensor held = cache.held(1, side == 0 ? Side::Key : Side::Value);
        for (int head = 0; head < kKvHeads; ++head) {
          Row row = sides[side].decoded(token, head, tier_of[head][t]);
          if (side == 0) row = turned(row, t);
          for (int c = 0; c < kDim; ++c)
            REQUIRE(std::abs(held.const_data_ptr<float>()[(t * kKvHeads + head) * kDim + c] - row[c]) < 2e-6);
        }
      }
    }
    for (int query = 0; query < kHeads; ++query) {  // the last query, over what is held
      std::vector<Row> keys, values;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const std::int64_t at = (t * kKvHeads + query / kGroup) * kDim;
        for (auto [rows, side] : {std::pair{&keys, Side::Key}, std::pair{&values, Side::Value}}) {
          rows->emplace_back();
          std::copy_n(cache.held(1, side).const_data_ptr<float>() + at, kDim, rows->back().begin());
        }
      }
      const auto weight = weights_of(text[1].query.const_data_ptr<float>() + ((kTokens - 1) * kHeads + query) * kDim,
                                     kTokens - 1, keys);
      for (int c = 0; c < kDim; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < weight.size(); ++i) sum += weight[i] * values[i][c];
        CHECK(std::abs(result.const_data_ptr<float>()[((kTokens - 1) * kHeads + query) * kDim + c] - sum) < 2e-5);
      }
    }
    try {
      cache.attend({1, kTokens, text[0].query, text[0].key, text[0].value});
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK(std::string(error.what()).find("by=window takes the weights of the whole window") != std::string::npos);
    }
  }
}
