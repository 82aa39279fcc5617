// Caches of models with layers whose queries see a window and rotate by angles of their own.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/cache/packed_cache.h>
#include <kvq/cache/settling_attention.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const KvShape kShape = {2, 6, 3, 16};
constexpr std::int64_t kTokens = 400;

/// Layer 1 is local.
std::shared_ptr<Quantizer> local_quantizer(const std::string& recipe, std::int64_t window, std::uint64_t seed) {
  auto quantizer = random_quantizer(recipe, kShape, seed);
  quantizer->rope.theta = 1e6;
  quantizer->rope.local = {.theta = 100.0, .rotary_dim = kShape.head_dim};
  quantizer->rope.window = window;
  quantizer->rope.is_local = {0, 1};
  return quantizer;
}

/// Attention by its definition, in double, with RoPE by its definition; `theta` 0: all is rotated already.
std::vector<double> plain_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                                    double theta, std::int64_t window) {
  const std::int64_t tokens = query.size(0), heads = query.size(1), kv_heads = keys.size(1), dim = query.size(2);
  const auto rotated = [&](const at::Tensor& x, std::int64_t token, std::int64_t head) {
    const float* row = x.const_data_ptr<float>() + (token * x.size(1) + head) * dim;
    std::vector<double> out(static_cast<std::size_t>(dim));
    for (std::int64_t pair = 0; pair < dim / 2; ++pair) {
      const double angle =
          theta == 0 ? 0.0 : static_cast<double>(token) * std::pow(theta, -2.0 * static_cast<double>(pair) / dim);
      out[pair] = row[pair] * std::cos(angle) - row[pair + dim / 2] * std::sin(angle);
      out[pair + dim / 2] = row[pair + dim / 2] * std::cos(angle) + row[pair] * std::sin(angle);
    }
    return out;
  };
  std::vector<double> result;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t kv_head = head / (heads / kv_heads);
      const std::vector<double> a = rotated(query, token, head);
      std::vector<double> sum(static_cast<std::size_t>(dim));
      double total = 0;
      for (std::int64_t seen = std::max<std::int64_t>(0, token + 1 - window); seen <= token; ++seen) {
        const std::vector<double> b = rotated(keys, seen, kv_head);
        double score = 0;
        for (std::int64_t channel = 0; channel < dim; ++channel) score += a[channel] * b[channel];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
        total += weight;
        const float* row = values.const_data_ptr<float>() + (seen * kv_heads + kv_head) * dim;
        for (std::int64_t channel = 0; channel < dim; ++channel) sum[channel] += weight * row[channel];
      }
      for (const double channel : sum) result.push_back(channel / total);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("A local layer's queries see the quantized tokens of their window, rotated by the layer's angles") {
  KVQ_BOTH_WAYS();
  for (const std::string recipe : {"int4-1%:sink=2", "int3:key=token", "int4:rope=post,sink=0"}) {
    for (const std::int64_t size : {1, 20, 64, 130, 1000}) {
      INFO(recipe << ", window " << size);
      const auto quantizer = local_quantizer(recipe, size, 3);
      const std::vector<AttentionInput> window = random_window(kShape, kTokens, 4);
      at::Tensor key = window[1].key.clone(), value = window[1].value.clone();
      RopeTable local(quantizer->rope.local);
      if (quantizer->recipe.key.post_rope) key = local.apply(key, 0).contiguous();
      for (const auto& [tensor, side] : {std::pair{key, Side::Key}, std::pair{value, Side::Value}}) {
        const SideEncoder encoder(quantizer->layers[1].side(side));
        const std::span<float> all(tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
        const auto sinks = static_cast<std::size_t>(quantizer->recipe.sinks * kShape.width());
        encoder.round_exact(all.first(sinks));
        encoder.round_trip(all.subspan(sinks), 1);
      }
      at::Tensor query = window[1].query;
      if (quantizer->recipe.key.post_rope) query = local.apply(query, 0).contiguous();
      const std::vector<double> expected =
          plain_attention(query, key, value, quantizer->recipe.key.post_rope ? 0.0 : 100.0, size);
      SimulatedCache simulated(quantizer, 2);
      PackedCache packed(quantizer, 2);
      for (const std::int64_t step : {kTokens, std::int64_t{130}, std::int64_t{1}}) {
        simulated.reset();
        packed.reset();
        CHECK(largest_difference(expected, doubles(run(simulated, window, equal_parts(kTokens, step)))) < 3e-6);
        CHECK(largest_difference(expected, doubles(run(packed, window, equal_parts(kTokens, step)))) < 3e-6);
      }
    }
  }
}

TEST_CASE("Every recipe: local layers of the packed cache say what those of the simulated one say") {
  KVQ_BOTH_WAYS();
  std::uint64_t seed = 200;
  std::vector<std::string> recipes = many_recipes();
  for (const std::string waits :
       {"nuq3-2%:recent=24,flush=4", "K=nuq2-2%:recent=40/V=int4:flush=16,sink=3", "kvq2:recent=16"})
    recipes.push_back(waits);
  for (const std::string& recipe : recipes) {
    for (const std::int64_t size : {10, 100}) {
      INFO(recipe << ", window " << size);
      const auto quantizer = local_quantizer(recipe, size, ++seed);
      const std::vector<AttentionInput> window = random_window(kShape, 150, 100 + seed);
      SimulatedCache simulated(quantizer, 2);
      PackedCache packed(quantizer, 2);
      const at::Tensor expected = run(simulated, window, {150}), result = run(packed, window, equal_parts(150, 70));
      CHECK(largest_difference(doubles(expected), doubles(result)) < 3e-6);
      CHECK(packed.bytes() == simulated.footprint().total());
    }
  }
}

TEST_CASE("Where exact and settled tokens are the same, attention with a window does not care which is seen") {
  KVQ_BOTH_WAYS();
  Rng rng(9);
  const at::Tensor query = random_values(90, 6, 16, rng), key = random_values(90, 3, 16, rng),
                   value = random_values(90, 3, 16, rng);
  ExactWindow waits;
  waits.recent = 12;
  waits.flush = 4;
  const SettlingTokens keys{waits, key.narrow(0, 0, waits.settled(90)), key, 0};
  const SettlingTokens values{waits, value.narrow(0, 0, waits.settled(90)), value, 0};
  for (const std::int64_t size : {1, 5, 30, 89, 90, 200}) {
    INFO("window " << size);
    CHECK(largest_difference(doubles(settling_attention(query, keys, values, 0, size)),
                             doubles(causal_attention(query, key, value, 0, size).contiguous())) < 3e-6);
  }
}

TEST_CASE("A recipe that evicts is refused where a layer sees a window only") {
  KVQ_BOTH_WAYS();
  const auto quantizer = local_quantizer("none:evict=first-recent,budget=32", 20, 5);
  CHECK_THROWS_WITH(SimulatedCache(quantizer, 1), ContainsSubstring("evicts") && ContainsSubstring("20 tokens"));
}
