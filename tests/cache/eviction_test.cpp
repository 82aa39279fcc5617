// Caches that evict, in one teacher-forced pass and in pieces, against decode loops in double precision that are
// written here from the papers' descriptions and hold nothing but lists of tokens.

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

#include "cache/random_attention.h"
#include "support/catch.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr int kLayers = 3, kHeads = 6, kKvHeads = 2, kGroup = 3, kDim = 16;
constexpr std::int64_t kTokens = 200;
const KvShape kShape = {kLayers, kHeads, kKvHeads, kDim};

std::shared_ptr<Quantizer> make_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = kShape;
  quantizer->rope.rotary_dim = kDim;
  for (int layer = 0; layer < kLayers && quantizer->recipe.quantized; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = kKvHeads, side.head_dim = kDim;
      side.codebooks = {uniform_codebook(side.recipe.bits)};
      if (side.recipe.range == RangeKind::Static) {
        side.lower.assign(kKvHeads * kDim, -0.97f);
        side.upper.assign(kKvHeads * kDim, 0.97f);
        side.outlier_rate = 0.03;
      }
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

std::vector<AttentionInput> random_window(std::uint64_t seed, std::int64_t tokens = kTokens) {
  Rng rng(seed);
  std::vector<AttentionInput> layers;
  for (int layer = 0; layer < kLayers; ++layer) layers.push_back(random_attention(layer, tokens, kShape, 4.0f, rng));
  return layers;
}

/// Cuts `tokens` into pieces of `size`.
std::vector<std::int64_t> pieces(std::int64_t tokens, std::int64_t size) {
  std::vector<std::int64_t> list;
  for (; tokens > 0; tokens -= list.back()) list.push_back(std::min(size, tokens));
  return list;
}

at::Tensor run(AttentionBackend& cache, const AttentionInput& window, const std::vector<std::int64_t>& chunks) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : chunks) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    results.push_back(cache.attend({window.layer, first, part(window.query), part(window.key), part(window.value)}));
    first += count;
  }
  return at::cat(results, 0);
}

using Vector = std::vector<double>;

/// cos and sin of each pair's angle at a position.
const Vector& angles(std::int64_t position) {
  static std::map<std::int64_t, Vector> known;
  Vector& table = known[position];
  for (int pair = 0; table.size() < kDim; ++pair) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / kDim);
    table.push_back(std::cos(angle));
    table.push_back(std::sin(angle));
  }
  return table;
}

std::array<double, kDim> rotated(const float* row, std::int64_t position) {
  std::array<double, kDim> out;
  const Vector& table = angles(position);
  for (int pair = 0; pair < kDim / 2; ++pair) {
    const double cosine = table[2 * pair], sine = table[2 * pair + 1];
    out[pair] = row[pair] * cosine - row[pair + kDim / 2] * sine;
    out[pair + kDim / 2] = row[pair + kDim / 2] * cosine + row[pair] * sine;
  }
  return out;
}

/// What a rule does with one kv head, told by a list of positions.
struct Loop {
  const AttentionInput& window;
  std::int64_t prompt = 0;
  int layer = 0;

  const float* query(std::int64_t t, int head) const { return row(window.query, t, kHeads, head); }
  const float* key(std::int64_t t, int head) const { return row(window.key, t, kKvHeads, head); }
  const float* value(std::int64_t t, int head) const { return row(window.value, t, kKvHeads, head); }
  static const float* row(const at::Tensor& x, std::int64_t t, int heads, int head) {
    return x.const_data_ptr<float>() + (t * heads + head) * kDim;
  }

  /// Softmax weights of query `t` of a query head over `tokens`; `by_index`: rotary positions count kept tokens.
  Vector weights(std::int64_t t, int head, const std::vector<std::int64_t>& tokens, bool by_index) const {
    const auto own = static_cast<std::int64_t>(tokens.size()) - 1;
    const auto q = rotated(query(t, head), by_index ? own : t);
    Vector scores;
    for (std::size_t index = 0; index < tokens.size(); ++index) {
      const auto k =
          rotated(key(tokens[index], head / kGroup), by_index ? static_cast<std::int64_t>(index) : tokens[index]);
      double sum = 0;
      for (int c = 0; c < kDim; ++c) sum += q[c] * k[c];
      scores.push_back(sum / std::sqrt(double(kDim)));
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    for (double& score : scores) score /= total;
    return scores;
  }
  void answer(std::int64_t t, int head, const std::vector<std::int64_t>& tokens, const Vector& weight,
              at::Tensor& out) const {
    float* to = out.mutable_data_ptr<float>() + (t * kHeads + head) * kDim;
    for (int c = 0; c < kDim; ++c) {
      double sum = 0;
      for (std::size_t index = 0; index < tokens.size(); ++index)
        sum += weight[index] * value(tokens[index], head / kGroup)[c];
      to[c] = static_cast<float>(sum);
    }
  }
};

struct Outcome {
  at::Tensor result;
  std::vector<std::vector<std::int64_t>> kept;  ///< per kv head
};

/// Budget of the continuous rules after `n` tokens, written anew.
std::int64_t budget_of(double share, std::int64_t fixed, std::int64_t least, std::int64_t n) {
  if (fixed > 0) return std::min(fixed, n);
  std::int64_t budget = 0;
  while (static_cast<double>(budget) < share * static_cast<double>(n) - 1e-6) ++budget;
  return std::min(std::max(budget, least), n);
}

Outcome first_recent(const Loop& loop, double share, std::int64_t fixed, int first, bool by_index) {
  Outcome out{at::empty({kTokens, kHeads, kDim}, loop.window.query.options()), {}};
  std::vector<std::int64_t> kept;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    kept.push_back(t);
    while (static_cast<std::int64_t>(kept.size()) > budget_of(share, fixed, first + 1, t + 1))
      kept.erase(kept.begin() + first);
    for (int head = 0; head < kHeads; ++head)
      loop.answer(t, head, kept, loop.weights(t, head, kept, by_index), out.result);
  }
  out.kept = {kept};
  return out;
}

Outcome h2o(const Loop& loop, double share, std::int64_t fixed, double heavy) {
  Outcome out{at::empty({kTokens, kHeads, kDim}, loop.window.query.options()), {}};
  for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    std::map<std::int64_t, double> mass;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      mass[t] = 0;
      const std::int64_t budget = budget_of(share, fixed, 1, t + 1);
      const auto recent = budget - static_cast<std::int64_t>(heavy * static_cast<double>(budget) + 1e-6);
      while (static_cast<std::int64_t>(mass.size()) > budget) {
        auto victim = mass.end();
        for (auto it = mass.begin(); it != mass.end() && it->first <= t - recent; ++it) {
          if (victim == mass.end() || it->second < victim->second) victim = it;
        }
        REQUIRE(victim != mass.end());
        mass.erase(victim);
      }
      std::vector<std::int64_t> kept;
      for (const auto& [position, weight] : mass) kept.push_back(position);
      for (int head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
        const Vector weight = loop.weights(t, head, kept, false);
        loop.answer(t, head, kept, weight, out.result);
        for (std::size_t index = 0; index < kept.size(); ++index) mass[kept[index]] += weight[index];
      }
    }
    out.kept.emplace_back();
    for (const auto& [position, weight] : mass) out.kept.back().push_back(position);
  }
  return out;
}

/// `budget`: of this layer, observed tokens included.
Outcome prompt_choice(const Loop& loop, std::int64_t budget, std::int64_t observe, int kernel, bool average) {
  Outcome out{at::empty({kTokens, kHeads, kDim}, loop.window.query.options()), {}};
  for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    std::vector<std::int64_t> kept;
    Vector votes(static_cast<std::size_t>(loop.prompt));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      kept.push_back(t);
      for (int head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
        const Vector weight = loop.weights(t, head, kept, false);
        loop.answer(t, head, kept, weight, out.result);
        if (t >= loop.prompt - observe && t < loop.prompt) {
          for (std::int64_t k = 0; k <= t; ++k)
            votes[static_cast<std::size_t>(k)] += weight[static_cast<std::size_t>(k)];
        }
      }
      if (t != loop.prompt - 1) continue;
      const std::int64_t prefix = loop.prompt - observe;
      std::vector<std::pair<double, std::int64_t>> ranked;
      for (std::int64_t k = 0; k < prefix; ++k) {
        double score = 0;
        for (std::int64_t near = std::max<std::int64_t>(k - kernel / 2, 0);
             near <= std::min(k + kernel / 2, prefix - 1); ++near) {
          const double vote = votes[static_cast<std::size_t>(near)];
          score = average ? score + vote / kernel : std::max(score, vote);
        }
        ranked.emplace_back(-score, k);
      }
      std::sort(ranked.begin(), ranked.end());
      kept.clear();
      for (std::int64_t index = 0; index < std::min(budget - observe, prefix); ++index)
        kept.push_back(ranked[index].second);
      std::sort(kept.begin(), kept.end());
      for (std::int64_t k = prefix; k < loop.prompt; ++k) kept.push_back(k);
    }
    out.kept.push_back(kept);
  }
  return out;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  double most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    most = std::max<double>(most, std::abs(a.const_data_ptr<float>()[i] - b.const_data_ptr<float>()[i]));
  return most;
}

/// All layers in pieces of 1, 7 and all at once: the outcome of the loop each time, and the same choice to the bit.
template <typename Expected>
void check(const std::string& recipe, std::int64_t prompt, std::uint64_t seed, Expected expected) {
  INFO(recipe);
  const std::vector<AttentionInput> window = random_window(seed);
  const auto quantizer = make_quantizer(recipe);
  SimulatedCache all(quantizer, 2), sevens(quantizer, 1), ones(quantizer, 2);
  for (SimulatedCache* cache : {&all, &sevens, &ones}) cache->set_prompt(prompt);
  for (int layer = 0; layer < kLayers; ++layer) {
    INFO("layer " << layer);
    const Outcome outcome = expected(Loop{window[layer], prompt, layer});
    const at::Tensor at_once = run(all, window[layer], {kTokens});
    CHECK(largest_difference(at_once, outcome.result) < 2e-5);
    CHECK(largest_difference(run(sevens, window[layer], pieces(kTokens, 7)), outcome.result) < 2e-5);
    CHECK(largest_difference(run(ones, window[layer], pieces(kTokens, 1)), outcome.result) < 2e-5);
    CHECK(all.kept(layer) == outcome.kept);
    CHECK(sevens.kept(layer) == outcome.kept);
    CHECK(ones.kept(layer) == outcome.kept);
  }
  CHECK(all.footprint() == sevens.footprint());
  CHECK(all.footprint() == ones.footprint());
  all.reset();  // and again from the beginning
  CHECK(largest_difference(run(all, window[0], {100, 100}), expected(Loop{window[0], prompt, 0}).result) < 2e-5);
  CHECK(all.kept(0) == sevens.kept(0));
}

}  // namespace

TEST_CASE("first-recent keeps the first and the newest tokens, at rotary positions of the cache or of the text") {
  check("none:evict=first-recent,budget=40", 0, 1, [](const Loop& loop) { return first_recent(loop, 0, 40, 4, true); });
  check("none:evict=first-recent,budget=40,first=7,positions=original", 0, 2,
        [](const Loop& loop) { return first_recent(loop, 0, 40, 7, false); });
  check("none:evict=first-recent,budget=30%", 0, 3,
        [](const Loop& loop) { return first_recent(loop, 0.3, 0, 4, true); });
  check("none:evict=first-recent,budget=20%,first=0", 0, 4,
        [](const Loop& loop) { return first_recent(loop, 0.2, 0, 0, true); });
  check("none:evict=first-recent,budget=150", 0, 5,
        [](const Loop& loop) { return first_recent(loop, 0, 150, 4, true); });
}

TEST_CASE("h2o drops the token with the least accumulated weight that is not among the newest") {
  check("none:evict=h2o,budget=40", 0, 6, [](const Loop& loop) { return h2o(loop, 0, 40, 0.5); });
  check("none:evict=h2o,budget=25%,heavy=30%", 0, 7, [](const Loop& loop) { return h2o(loop, 0.25, 0, 0.3); });
  check("none:evict=h2o,budget=17,heavy=0%", 0, 8, [](const Loop& loop) { return h2o(loop, 0, 17, 0); });
  check("none:evict=h2o,budget=1", 0, 9, [](const Loop& loop) { return h2o(loop, 0, 1, 0.5); });
}

TEST_CASE("snapkv chooses at the end of the prompt by pooled votes of its last queries") {
  check("none:evict=snapkv,budget=60,observe=16,kernel=5", 131, 10,
        [](const Loop& loop) { return prompt_choice(loop, 60, 16, 5, false); });
  check("none:evict=snapkv,budget=25%,observe=8,pool=avg,kernel=3", 140, 11,
        [](const Loop& loop) { return prompt_choice(loop, 35, 8, 3, true); });
  check("none:evict=snapkv,budget=32", 128, 12, [](const Loop& loop) { return prompt_choice(loop, 32, 32, 7, false); });
  // A prompt that the budget holds, and a text that ends before its prompt does.
  check("none:evict=snapkv,budget=150", 128, 13,
        [](const Loop& loop) { return prompt_choice(loop, 150, 32, 7, false); });
  check("none:evict=snapkv,budget=40", 1000, 14, [](const Loop& loop) {
    Outcome outcome = prompt_choice(loop, 1000, 32, 7, false);
    return outcome;
  });
}

TEST_CASE("pyramidkv is snapkv with a budget for each layer") {
  // b = 40 - 8 = 32, beta 4: 56, 32, 8 and the 8 observed ones.
  check("none:evict=pyramidkv,budget=40,beta=4,kernel=5", 120, 15, [](const Loop& loop) {
    const std::int64_t budgets[] = {64, 40, 16};
    return prompt_choice(loop, budgets[loop.layer], 8, 5, false);
  });
}

TEST_CASE("Quantized tokens are evicted as they are given back, and judged by what they have become") {
  for (const std::string recipe : {"int4:evict=h2o,budget=40", "int3-5%:sink=2,evict=h2o,budget=25%"}) {
    const auto quantizer = make_quantizer(recipe);
    std::vector<AttentionInput> window = random_window(16), decoded = random_window(16);
    std::int64_t outliers[2] = {};
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Side which : kSides) {
        at::Tensor& x = which == Side::Key ? decoded[layer].key : decoded[layer].value;
        const std::int64_t sinks = quantizer->recipe.sinks, width = kKvHeads * kDim;
        const SideEncoder encoder(quantizer->layers[layer].side(which));
        float* data = x.mutable_data_ptr<float>();
        std::vector<std::uint32_t> counts(static_cast<std::size_t>(kTokens - sinks));
        encoder.round_exact({data, static_cast<std::size_t>(sinks * width)});
        encoder.round_trip({data + sinks * width, static_cast<std::size_t>((kTokens - sinks) * width)}, 1, counts);
        for (const std::uint32_t count : counts) outliers[static_cast<int>(which)] += count;
      }
    }
    SimulatedCache cache(quantizer, 2), sevens(quantizer, 2);
    const double share = quantizer->recipe.eviction.share;
    for (int layer = 0; layer < kLayers; ++layer) {
      const Outcome outcome = h2o(Loop{decoded[layer], 0, layer}, share, quantizer->recipe.eviction.tokens, 0.5);
      CHECK(largest_difference(run(cache, window[layer], {kTokens}), outcome.result) < 2e-5);
      run(sevens, window[layer], pieces(kTokens, 7));
      CHECK(cache.kept(layer) == outcome.kept);
    }
    CHECK(cache.footprint() == sevens.footprint());
    CHECK(cache.footprint().codes == kLayers * kKvHeads * 2 * kDim * 64 * quantizer->recipe.key.bits / 8);
    CHECK((outliers[0] > 0) == (quantizer->recipe.key.outliers > 0));
  }
}

TEST_CASE("A budget of all tokens changes nothing") {
  const std::vector<AttentionInput> window = random_window(17);
  for (const std::string kept : {"none", "int4"}) {
    SimulatedCache whole(make_quantizer(kept), 2);
    const at::Tensor expected = run(whole, window[1], {kTokens});
    for (const char* words : {"evict=first-recent,budget=100%", "evict=h2o,budget=100%", "evict=snapkv,budget=100%",
                              "evict=pyramidkv,budget=100%", "evict=h2o,budget=200", "evict=first-recent,budget=200"}) {
      INFO(kept << " " << words);
      SimulatedCache cache(make_quantizer(kept + ":" + words), 2);
      cache.set_prompt(100);
      CHECK(largest_difference(run(cache, window[1], {kTokens}), expected) < 1e-5);
      CHECK(cache.kept(1)[0].size() == static_cast<std::size_t>(kTokens));
    }
  }
}

TEST_CASE("Only some layers evict; one side alone cannot") {
  const std::vector<AttentionInput> window = random_window(18);
  CacheParts parts;
  parts.layers = {1};
  const auto quantizer = make_quantizer("none:evict=h2o,budget=20");
  SimulatedCache cache(quantizer, 1, parts), all(quantizer, 1), none(make_quantizer("none"), 1);
  for (int layer = 0; layer < 2; ++layer) {
    const at::Tensor result = run(cache, window[layer], {kTokens});
    CHECK((largest_difference(result, run(none, window[layer], {kTokens})) == 0) == (layer == 0));
    CHECK((largest_difference(result, run(all, window[layer], {kTokens})) == 0) == (layer == 1));
  }
  parts.side = Side::Key;
  CHECK_THROWS_AS(SimulatedCache(quantizer, 1, parts), Error);
}

TEST_CASE("A cache that chooses at the end of the prompt must be told where that is") {
  SimulatedCache cache(make_quantizer("none:evict=snapkv,budget=50"), 1);
  try {
    run(cache, random_window(19)[0], {kTokens});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK(std::string(error.what()).find("end of the prompt") != std::string::npos);
  }
}

TEST_CASE("Packed caches refuse recipes that evict") {
  for (const char* recipe : {"none:evict=h2o,budget=20", "int4:evict=first-recent,budget=20"}) {
    try {
      make_cache(CacheKind::Packed, make_quantizer(recipe), 1);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK(std::string(error.what()).find("the packed cache cannot hold it") != std::string::npos);
    }
  }
}
