// Caches with tiers against a decode loop in double precision that is written here: lists of tokens, their codes found
// by looking at every level, tiers decided anew at every token from the weights of the queries before.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "support/catch.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>

using namespace kvq;

namespace {

constexpr int kLayers = 2, kHeads = 6, kKvHeads = 2, kGroup = 3, kDim = 16, kWidth = kKvHeads * kDim;
constexpr std::int64_t kTokens = 150;

/// Levels that are neither even nor symmetric.
Codebook uneven(int bits, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> levels(std::size_t{1} << bits);
  for (float& level : levels) level = static_cast<float>(2.0 * rng.uniform() - 1.0);
  std::sort(levels.begin(), levels.end());
  return {levels, levels};
}

std::shared_ptr<Quantizer> tiered_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = {kLayers, kHeads, kKvHeads, kDim};
  quantizer->rope.rotary_dim = kDim;
  std::uint64_t seed = 1000;
  for (int layer = 0; layer < kLayers; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = kKvHeads, side.head_dim = kDim;
      const int books = side.recipe.share == Share::Head ? kKvHeads : 1;
      for (int book = 0; book < books; ++book) side.codebooks.push_back(uneven(side.recipe.bits, seed++));
      for (const int bits : lower_tier_bits(quantizer->recipe.tiers)) {
        side.lower_tiers.push_back({bits, {}});
        for (int book = 0; book < books; ++book) side.lower_tiers.back().codebooks.push_back(uneven(bits, seed++));
      }
      if (side.recipe.range == RangeKind::Static) {
        side.lower.assign(kWidth, -0.96f);
        side.upper.assign(kWidth, 0.98f);
        side.outlier_rate = 0.03;
      }
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

std::vector<AttentionInput> random_text(std::uint64_t seed) {
  Rng rng(seed);
  const auto tensor = [&](int heads, float size) {
    at::Tensor x = at::empty({kTokens, heads, kDim}, at::TensorOptions().dtype(at::kFloat));
    float* data = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = size * static_cast<float>(2.0 * rng.uniform() - 1.0);
    return x;
  };
  std::vector<AttentionInput> layers;
  for (int layer = 0; layer < kLayers; ++layer)
    layers.push_back({layer, 0, tensor(kHeads, 4.0f), tensor(kKvHeads, 1.0f), tensor(kKvHeads, 1.0f)});
  return layers;
}

at::Tensor run_in_pieces(AttentionBackend& cache, const AttentionInput& text, std::int64_t size) {
  std::vector<at::Tensor> results;
  for (std::int64_t first = 0; first < kTokens; first += size) {
    const std::int64_t count = std::min(size, kTokens - first);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    results.push_back(cache.attend({text.layer, first, part(text.query), part(text.key), part(text.value)}));
  }
  return at::cat(results, 0);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  double most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    most = std::max<double>(most, std::abs(a.const_data_ptr<float>()[i] - b.const_data_ptr<float>()[i]));
  return most;
}

using Row = std::array<double, kDim>;

/// What a cache that has only codes knows of one side of a token.
struct Stored {
  std::array<int, kWidth> code{};
  std::array<bool, kWidth> exact{};
  std::array<double, kWidth> value{};  ///< where exact
  std::array<double, kWidth> zero{}, scale{};
};

double rounded(double x) { return half_to_float(float_to_half(static_cast<float>(x))); }

int nearest(const std::vector<float>& levels, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(levels.size()); ++code) {
    if (std::abs(x - levels[code]) < std::abs(x - levels[best])) best = code;
  }
  return best;
}

struct PlainSide {
  const SideQuantizer& side;

  const std::vector<float>& levels(int tier, int channel) const {
    const auto& books = tier == 0 ? side.codebooks : side.lower_tiers[static_cast<std::size_t>(tier) - 1].codebooks;
    return books[books.size() == 1 ? 0 : static_cast<std::size_t>(channel / kDim)].centroids;
  }
  Stored store(const float* x, const std::array<int, kKvHeads>& tier) const {
    Stored token;
    double low = 1e9, high = -1e9;
    if (side.recipe.range == RangeKind::Static) {
      for (int c = 0; c < kWidth; ++c) {
        low = side.lower[c], high = side.upper[c];
        token.zero[c] = 0.5 * low + 0.5 * high, token.scale[c] = 0.5 * high - 0.5 * low;
        token.exact[c] = side.recipe.outliers > 0 && (x[c] < low || x[c] > high);
      }
    } else {
      std::vector<std::pair<double, int>> order;
      for (int c = 0; c < kWidth; ++c) order.emplace_back(x[c], c);
      std::sort(order.begin(), order.end());
      const auto k =
          side.recipe.outliers > 0
              ? std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(side.recipe.outliers * kWidth / 2)))
              : 0;
      for (std::size_t i = 0; i < k; ++i)
        token.exact[order[i].second] = token.exact[order[kWidth - 1 - i].second] = true;
      low = order[k].first, high = order[kWidth - 1 - k].first;
      const double zero = rounded(0.5 * low + 0.5 * high), scale = rounded(std::max(high - zero, zero - low));
      token.zero.fill(zero), token.scale.fill(scale);
    }
    for (int c = 0; c < kWidth; ++c) {
      if (token.exact[c]) token.value[c] = rounded(x[c]);
      token.code[c] = nearest(levels(tier[c / kDim], c), (x[c] - token.zero[c]) / token.scale[c]);
    }
    return token;
  }
  void recode(Stored& token, int first_head, int heads, int from, int to) const {
    for (int c = first_head * kDim; c < (first_head + heads) * kDim; ++c)
      token.code[c] = nearest(levels(to, c), levels(from, c)[static_cast<std::size_t>(token.code[c])]);
  }
  Row decoded(const Stored& token, int head, int tier) const {
    Row row;
    for (int i = 0; i < kDim; ++i) {
      const int c = head * kDim + i;
      row[i] = token.exact[c]
                   ? token.value[c]
                   : token.zero[c] + token.scale[c] * levels(tier, c)[static_cast<std::size_t>(token.code[c])];
    }
    return row;
  }
};

Row turned(const Row& row, std::int64_t position) {
  Row out;
  for (int pair = 0; pair < kDim / 2; ++pair) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / kDim);
    out[pair] = row[pair] * std::cos(angle) - row[pair + kDim / 2] * std::sin(angle);
    out[pair + kDim / 2] = row[pair + kDim / 2] * std::cos(angle) + row[pair] * std::sin(angle);
  }
  return out;
}

/// Softmax weights over `keys`.
std::vector<double> weights_of(const float* query, std::int64_t position, const std::vector<Row>& keys) {
  Row q;
  std::copy_n(query, kDim, q.begin());
  q = turned(q, position);
  std::vector<double> scores;
  for (const Row& key : keys) {
    double sum = 0;
    for (int c = 0; c < kDim; ++c) sum += q[c] * key[c];
    scores.push_back(sum / std::sqrt(double(kDim)));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - most);
  for (double& score : scores) score /= total;
  return scores;
}

struct Outcome {
  at::Tensor result = at::empty({kTokens, kHeads, kDim}, at::TensorOptions().dtype(at::kFloat));
  at::Tensor held[2] = {at::empty({kTokens, kKvHeads, kDim}, at::TensorOptions().dtype(at::kFloat)),
                        at::empty({kTokens, kKvHeads, kDim}, at::TensorOptions().dtype(at::kFloat))};
  TierTokens tiers;
  int falls = 0, returns = 0, drops = 0;
};

/// Everything that the loop knows of the recipe.
struct Rule {
  std::vector<double> shares;  ///< cumulative, the last is what is kept
  int newest, sinks;
  double decay = 1, hysteresis = -1;  ///< negative: nothing comes back
  bool per_head = false;
};

std::int64_t least_at_least(double share, std::int64_t n) {
  std::int64_t count = 0;
  while (static_cast<double>(count) < share * static_cast<double>(n) - 1e-6) ++count;
  return count;
}

Outcome tiers_loop(const AttentionInput& text, const LayerQuantizer& layer, const Rule& rule) {
  Outcome out;
  const int lists = rule.per_head ? kKvHeads : 1, heads = kKvHeads / lists;
  const auto tier_count = static_cast<int>(rule.shares.size());
  const PlainSide sides[2] = {{layer.key}, {layer.value}};
  out.tiers.assign(static_cast<std::size_t>(tier_count), KeptTokens(static_cast<std::size_t>(lists)));
  for (int list = 0; list < lists; ++list) {
    std::map<std::int64_t, Stored> stored[2];
    std::map<std::int64_t, int> tier;  // of tokens that are kept and not exact
    std::map<std::int64_t, double> mass;
    const auto fall = [&](std::int64_t position, int to) {
      const int from = tier[position];
      if (to == tier_count) {
        tier.erase(position);
        ++out.drops;
        return;
      }
      for (const int side : {0, 1}) sides[side].recode(stored[side][position], list * heads, heads, from, to);
      tier[position] = to;
      ++(to > from ? out.falls : out.returns);
    };
    const auto extreme = [&](int of, std::int64_t before, double sign) {
      std::int64_t found = -1;
      for (const auto& [position, own] : tier) {
        if (own == of && position < before && (found < 0 || sign * mass[position] < sign * mass[found]))
          found = position;
      }
      return found;
    };
    const auto row_of = [&](int side, std::int64_t position, int head) {
      const float* x = (side == 0 ? text.key : text.value).const_data_ptr<float>() + position * kWidth;
      Row row;
      if (position < rule.sinks) {
        for (int c = 0; c < kDim; ++c) row[c] = rounded(x[head * kDim + c]);
      } else {
        row = sides[side].decoded(stored[side][position], head, tier.count(position) ? tier[position] : tier_count - 1);
      }
      return side == 0 ? turned(row, position) : row;
    };
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t >= rule.sinks) {
        for (const int side : {0, 1})
          stored[side][t] =
              sides[side].store((side == 0 ? text.key : text.value).const_data_ptr<float>() + t * kWidth, {});
        tier[t] = 0;
        mass[t] = 0;
        const std::int64_t n = t + 1 - rule.sinks;
        std::int64_t above = 0;
        for (int own = 0; own < tier_count; ++own) {
          std::int64_t limit = least_at_least(rule.shares[own], n);
          if (own == 0) limit = std::min<std::int64_t>(std::max<std::int64_t>(limit, rule.newest), n);
          limit = std::max(limit, above);
          const auto count = [&] {
            return std::count_if(tier.begin(), tier.end(), [&](const auto& entry) { return entry.second <= own; });
          };
          while (count() > limit) fall(extreme(own, own == 0 ? t + 1 - rule.newest : t + 1, 1), own + 1);
          above = limit;
        }
        for (int own = 0; rule.hysteresis >= 0 && own + 1 < tier_count; ++own) {
          const std::int64_t light = extreme(own, own == 0 ? t + 1 - rule.newest : t + 1, 1),
                             heavy = extreme(own + 1, t + 1, -1);
          if (light < 0 || heavy < 0 || !(mass[heavy] > (1 + rule.hysteresis) * mass[light])) continue;
          fall(light, own + 1);
          fall(heavy, own);
        }
      }
      std::vector<std::int64_t> seen;
      for (std::int64_t position = 0; position <= t; ++position) {
        if (position < rule.sinks || tier.count(position)) seen.push_back(position);
      }
      for (auto& [position, sum] : mass) sum *= rule.decay;
      for (int head = list * heads; head < (list + 1) * heads; ++head) {
        std::vector<Row> keys, values;
        for (const std::int64_t position : seen)
          keys.push_back(row_of(0, position, head)), values.push_back(row_of(1, position, head));
        for (int query = head * kGroup; query < (head + 1) * kGroup; ++query) {
          const std::vector<double> weight =
              weights_of(text.query.const_data_ptr<float>() + (t * kHeads + query) * kDim, t, keys);
          float* to = out.result.mutable_data_ptr<float>() + (t * kHeads + query) * kDim;
          for (int c = 0; c < kDim; ++c) {
            double sum = 0;
            for (std::size_t i = 0; i < seen.size(); ++i) sum += weight[i] * values[i][c];
            to[c] = static_cast<float>(sum);
          }
          for (std::size_t i = 0; i < seen.size(); ++i) {
            if (mass.count(seen[i])) mass[seen[i]] += weight[i];
          }
        }
      }
    }
    for (const auto& [position, own] : tier)
      out.tiers[static_cast<std::size_t>(own)][static_cast<std::size_t>(list)].push_back(position);
    for (const int side : {0, 1}) {
      for (std::int64_t position = 0; position < kTokens; ++position) {
        for (int head = list * heads; head < (list + 1) * heads; ++head) {
          const Row row = row_of(side, position, head);
          std::copy(row.begin(), row.end(),
                    out.held[side].mutable_data_ptr<float>() + (position * kKvHeads + head) * kDim);
        }
      }
    }
  }
  return out;
}

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

TEST_CASE("Counted bits of tiers are what a plain count gives") {
  const std::vector<AttentionInput> text = random_text(10);
  const auto count = [&](const std::string& recipe) {
    SimulatedCache cache(tiered_quantizer(recipe), 2);
    for (int layer = 0; layer < kLayers; ++layer) run_in_pieces(cache, text[layer], kTokens);
    return cache.footprint();
  };
  // 149 tokens beside the sink: 38 at 4 bits, 37 at 3, 74 at 2: one page, one, and two.
  const Footprint layers = count("int4:mid=3,lo=2,newest=8");
  CHECK(layers.codes == kLayers * 64 * 2 * kWidth * (4 + 3 + 2 * 2) / 8);
  CHECK(layers.ranges == kLayers * 4 * 64 * 4);
  CHECK(layers.outliers == 0);
  CHECK(layers.exact == kLayers * 2 * kWidth * 2);
  CHECK(layers.tables == kLayers * 4 * 4);
  CHECK(layers.selection == kLayers * (149 * 4 + (38 + 37) * 4));  // the last tier's tokens stay there for good
  // With a way back, or out, all hold their weight.
  CHECK(count("int4:mid=3,lo=2,newest=8,hysteresis=50%").selection == kLayers * 149 * 8);
  CHECK(count("int4:mid=3,lo=2,newest=8,keep=80%").selection == kLayers * 120 * 8);
  // Each head its own pages, half as wide, and a copy of the range.
  const Footprint heads = count("int4:mid=3,lo=2,newest=8,per=head");
  CHECK(heads.codes == layers.codes);
  CHECK(heads.ranges == 2 * layers.ranges);
  CHECK(heads.tables == 2 * layers.tables);
  CHECK(heads.selection == 2 * layers.selection);
  CHECK(heads.exact == layers.exact);
  // What is forecast is what there is, where no outliers vary.
  const auto plain = tiered_quantizer("int4:mid=3,lo=2,newest=8,per=head");
  CHECK(forecast_footprint(*plain, kTokens) == heads);
  // The oracle has no weights to hold.
  CHECK(count("int4:mid=3,lo=2,by=window").selection == kLayers * 149 * 4);
}

TEST_CASE("Outliers of tiers are those of the same tokens in one tier") {
  // As many values stay exact as without tiers: what a tier changes is codes.
  const std::vector<AttentionInput> text = random_text(11);
  const auto quantizer = tiered_quantizer("nuq4-5%:lo=2,newest=8");
  SimulatedCache cache(quantizer, 2);
  for (int layer = 0; layer < kLayers; ++layer) run_in_pieces(cache, text[layer], kTokens);
  auto high = std::make_shared<Quantizer>(*quantizer), low = std::make_shared<Quantizer>(*quantizer);
  high->recipe = parse_recipe("nuq4-5%"), low->recipe = parse_recipe("nuq2-5%");
  for (LayerQuantizer& layer : high->layers) layer = {tier_side(layer.key, 0), tier_side(layer.value, 0)};
  for (LayerQuantizer& layer : low->layers) layer = {tier_side(layer.key, 1), tier_side(layer.value, 1)};
  // 38 of 149 tokens high: a page; 111 low: two. The outliers of three pages; overflow blocks depend on who is where.
  const Footprint footprint = cache.footprint();
  const auto page = [](const Quantizer& of) { return forecast_footprint(of, 1); };
  CHECK(footprint.codes == page(*high).codes + 2 * page(*low).codes);
  CHECK(footprint.ranges == 3 * page(*high).ranges);
  CHECK(footprint.outliers >= 3 * page(*high).outliers);
  CHECK(footprint.padding == page(*high).padding + 2 * page(*low).padding);
}

TEST_CASE("Tiers of heads are moved by several threads, in inference mode too") {
  const std::vector<AttentionInput> text = random_text(13);
  const auto quantizer = tiered_quantizer("adaptive:hi=4,lo=2,newest=4,per=head");
  SimulatedCache one(quantizer, 1);
  const at::Tensor expected = run_in_pieces(one, text[0], kTokens);
  const c10::InferenceMode inference;
  SimulatedCache two(quantizer, 2);
  CHECK(difference(run_in_pieces(two, text[0], 40), expected) == 0.0);
}

TEST_CASE("Caches that cannot have tiers say so") {
  const auto refusal = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto quantizer = tiered_quantizer("adaptive:hi=4,lo=2");
  CHECK(refusal([&] { make_cache(CacheKind::Packed, quantizer, 1); }).find("the packed cache cannot hold it") !=
        std::string::npos);
  CacheParts parts;
  parts.side = Side::Key;
  CHECK(refusal([&] { SimulatedCache(quantizer, 1, parts); }).find("one side of it is no cache") != std::string::npos);
  auto local = std::make_shared<Quantizer>(*quantizer);
  local->rope.is_local = {1, 0};
  local->rope.window = 16;
  CHECK(refusal([&] { SimulatedCache(local, 1); }).find("has tiers by attention") != std::string::npos);
  // Some layers only: the others are as they were.
  parts = {};
  parts.layers = {1};
  const std::vector<AttentionInput> text = random_text(12);
  auto none = std::make_shared<Quantizer>();
  none->recipe = parse_recipe("none");
  none->shape = quantizer->shape, none->rope = quantizer->rope;
  SimulatedCache some(quantizer, 1, parts), exact(none, 1), all(quantizer, 1);
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor result = run_in_pieces(some, text[layer], kTokens);
    CHECK((difference(result, run_in_pieces(exact, text[layer], kTokens)) == 0) == (layer == 0));
    CHECK((difference(result, run_in_pieces(all, text[layer], kTokens)) == 0) == (layer == 1));
  }
}
