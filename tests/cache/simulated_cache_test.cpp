#include <kvq/cache/simulated_cache.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>

using namespace kvq;

namespace {

const KvShape kShape = {2, 4, 2, 8};  // layers, heads, kv_heads, head_dim
constexpr std::int64_t kTokens = 150;

RopeParams rope_params() {
  RopeParams rope;
  rope.rotary_dim = 8;
  return rope;
}

at::Tensor random_tensor(std::int64_t tokens, std::int64_t heads, Rng& rng, float size = 1.0f) {
  at::Tensor x = at::empty({tokens, heads, kShape.head_dim}, at::TensorOptions().dtype(at::kFloat));
  float* data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = size * static_cast<float>(2.0 * rng.uniform() - 1.0);
  return x;
}

std::vector<AttentionInput> random_window(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<AttentionInput> layers;
  for (int layer = 0; layer < kShape.layers; ++layer) {
    layers.push_back({layer, 0, random_tensor(kTokens, kShape.heads, rng, 2.0f),
                      random_tensor(kTokens, kShape.kv_heads, rng), random_tensor(kTokens, kShape.kv_heads, rng)});
  }
  return layers;
}

std::shared_ptr<Quantizer> make_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = kShape;
  quantizer->rope = rope_params();
  for (int layer = 0; layer < kShape.layers && quantizer->recipe.quantized; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = kShape.kv_heads, side.head_dim = kShape.head_dim;
      side.codebooks = {uniform_codebook(side.recipe.bits)};
      if (side.recipe.range == RangeKind::Static) {
        const float bound = side.recipe.outliers > 0 ? 0.97f : side.recipe.post_rope ? 1.5f : 1.0f;
        side.lower.assign(static_cast<std::size_t>(side.width()), -bound);
        side.upper.assign(static_cast<std::size_t>(side.width()), bound);
        side.outlier_rate = 0.03;
      }
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

at::Tensor run(AttentionBackend& backend, const std::vector<AttentionInput>& window,
               const std::vector<std::int64_t>& chunks, int layer = 0, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : chunks) {
    for (const AttentionInput& whole : window) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count).to(dtype); };
      const at::Tensor result =
          backend.attend({whole.layer, first, part(whole.query), part(whole.key), part(whole.value)});
      if (whole.layer == layer) results.push_back(result);
    }
    first += count;
  }
  return at::cat(results, 0);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kFloat).contiguous(), y = b.to(at::kFloat).contiguous();
  double largest = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    largest = std::max<double>(largest, std::abs(x.const_data_ptr<float>()[i] - y.const_data_ptr<float>()[i]));
  }
  return largest;
}

/// Attention by its definition, in double, with RoPE by its definition.
std::vector<double> plain_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values) {
  const auto q = query.contiguous(), k = keys.contiguous(), v = values.contiguous();
  const std::int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), dim = q.size(2);
  const auto rotated = [&](const at::Tensor& x, std::int64_t token, std::int64_t head) {
    const float* row = x.const_data_ptr<float>() + (token * x.size(1) + head) * dim;
    std::vector<double> out(static_cast<std::size_t>(dim));
    for (std::int64_t pair = 0; pair < dim / 2; ++pair) {
      const double angle =
          static_cast<double>(token) * std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
      out[pair] = row[pair] * std::cos(angle) - row[pair + dim / 2] * std::sin(angle);
      out[pair + dim / 2] = row[pair + dim / 2] * std::cos(angle) + row[pair] * std::sin(angle);
    }
    return out;
  };
  std::vector<double> result;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t kv_head = head / (heads / kv_heads);
      const std::vector<double> a = rotated(q, token, head);
      std::vector<double> sum(static_cast<std::size_t>(dim));
      double total = 0;
      for (std::int64_t seen = 0; seen <= token; ++seen) {
        const std::vector<double> b = rotated(k, seen, kv_head);
        double score = 0;
        for (std::int64_t channel = 0; channel < dim; ++channel) score += a[channel] * b[channel];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
        total += weight;
        const float* row = v.const_data_ptr<float>() + (seen * kv_heads + kv_head) * dim;
        for (std::int64_t channel = 0; channel < dim; ++channel) sum[channel] += weight * row[channel];
      }
      for (const double channel : sum) result.push_back(channel / total);
    }
  }
  return result;
}

double difference_from(const std::vector<double>& expected, const at::Tensor& result) {
  const at::Tensor flat = result.to(at::kFloat).contiguous();
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i] - flat.const_data_ptr<float>()[i]));
  }
  return largest;
}

const std::vector<std::vector<std::int64_t>> kChunkings = {
    {kTokens}, std::vector<std::int64_t>(kTokens, 1), {7, 1, 64, 2, 76}, {1, 149}, {63, 2, 85}};

}  // namespace

TEST_CASE("Attention over quantized keys and values is attention over what the encoder gives back") {
  KVQ_BOTH_WAYS();
  const std::vector<AttentionInput> window = random_window(1);
  for (const std::string recipe : {"int4-1%:sink=2", "int3:sink=0", "int2-1%:value=channel", "int3:key=token"}) {
    INFO(recipe);
    const auto quantizer = make_quantizer(recipe);
    SimulatedCache cache(quantizer, 2);
    const at::Tensor result = run(cache, window, {kTokens}, 1);
    at::Tensor key = window[1].key.clone(), value = window[1].value.clone();
    const std::int64_t sinks = quantizer->recipe.sinks;
    for (const auto& [tensor, side] : {std::pair{key, Side::Key}, std::pair{value, Side::Value}}) {
      const SideEncoder encoder(quantizer->layers[1].side(side));
      float* data = tensor.mutable_data_ptr<float>();
      for (std::int64_t i = 0; i < sinks * kShape.width(); ++i) data[i] = half_to_float(float_to_half(data[i]));
      encoder.round_trip({data + sinks * kShape.width(), static_cast<std::size_t>((kTokens - sinks) * kShape.width())},
                         1);
    }
    CHECK(difference_from(plain_attention(window[1].query, key, value), result) < 2e-6);
    CHECK(difference_from(plain_attention(window[1].query, window[1].key, window[1].value), result) > 1e-3);
  }
}

TEST_CASE("Many bits approach exact attention, fewer bits depart from it step by step") {
  KVQ_BOTH_WAYS();
  const std::vector<AttentionInput> window = random_window(2);
  const std::vector<double> exact = plain_attention(window[0].query, window[0].key, window[0].value);
  ExactAttention reference(kShape, rope_params());
  CHECK(difference_from(exact, run(reference, window, {kTokens})) < 2e-6);
  SimulatedCache none(make_quantizer("none"), 1);
  CHECK(difference_from(exact, run(none, window, {kTokens})) < 2e-6);
  double previous = 1e-6;
  for (const int bits : {8, 6, 4, 2}) {
    for (const std::string words : {"", ":rope=post"}) {
      SimulatedCache cache(make_quantizer("int" + std::to_string(bits) + words), 2);
      const double difference = difference_from(exact, run(cache, window, {kTokens}));
      CHECK(difference > previous);
      if (bits == 8) CHECK(difference < 6e-3);
      if (!words.empty()) previous = difference * 0.9;
    }
  }
}

TEST_CASE("Appending in any chunks gives the same cache") {
  KVQ_BOTH_WAYS();
  const std::vector<AttentionInput> window = random_window(3);
  for (const std::string recipe :
       {"int3-1%:sink=4", "int4-1%:sink=5,rope=post", "int2:key=token,sink=0", "int2:value=channel"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      INFO(recipe);
      SimulatedCache cache(make_quantizer(recipe), 2);
      const at::Tensor whole = run(cache, window, {kTokens}, 1, dtype);
      CHECK(whole.scalar_type() == dtype);
      CHECK(cache.tokens() == kTokens);
      const std::int64_t bytes = cache.footprint().total();
      for (const auto& chunks : kChunkings) {
        cache.reset();
        CHECK(cache.tokens() == 0);
        CHECK(cache.footprint().total() == 0);
        const at::Tensor pieces = run(cache, window, chunks, 1, dtype);
        CHECK(largest_difference(whole, pieces) < (dtype == at::kFloat ? 2e-6 : 1e-2));
        CHECK(cache.footprint().total() == bytes);
      }
    }
  }
}

TEST_CASE("Sinks are exact by position, also when they come in several calls") {
  KVQ_BOTH_WAYS();
  std::vector<AttentionInput> window = random_window(4);
  // Queries of the first tokens see sinks only: what they get is fp16-exact, whatever the bits.
  const std::vector<double> exact =
      plain_attention(window[0].query.narrow(0, 0, 3), window[0].key.narrow(0, 0, 3), window[0].value.narrow(0, 0, 3));
  for (const std::vector<std::int64_t>& chunks : kChunkings) {
    SimulatedCache three(make_quantizer("int1:sink=3"), 1), two(make_quantizer("int1:sink=2"), 1);
    CHECK(difference_from(exact, run(three, window, chunks).narrow(0, 0, 3)) < 1e-3);
    CHECK(difference_from(exact, run(two, window, chunks).narrow(0, 0, 3)) > 1e-2);
  }
}

TEST_CASE("The oracle's range needs the whole window in one call") {
  KVQ_BOTH_WAYS();
  const std::vector<AttentionInput> window = random_window(5);
  SimulatedCache cache(make_quantizer("int4:range=window"), 2);
  run(cache, window, {kTokens});
  cache.reset();
  try {
    run(cache, window, {100, 50});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.what(), ContainsSubstring("range=window"));
  }
}

TEST_CASE("NaN, infinity and overflow stop with layer, side, token and channel") {
  KVQ_BOTH_WAYS();
  const auto message = [](float bad, bool in_key, std::int64_t token) {
    std::vector<AttentionInput> window = random_window(6);
    at::Tensor& x = in_key ? window[1].key : window[1].value;
    x.mutable_data_ptr<float>()[(token * 2 + 1) * 8 + 5] = bad;
    SimulatedCache cache(make_quantizer("int4-5%:sink=2"), 1);
    try {
      run(cache, window, {100, 50});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Numeric);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const std::int64_t token : {1, 40, 120}) {
    for (const bool in_key : {true, false}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -7e4f}) {
        const std::string text = message(bad, in_key, token);
        INFO(text);
        CHECK_THAT(text, ContainsSubstring("layer 1"));
        CHECK_THAT(text, ContainsSubstring(in_key ? "key" : "value"));
        CHECK_THAT(text, ContainsSubstring("token " + std::to_string(token)));
        CHECK_THAT(text, ContainsSubstring("head 1"));
        CHECK_THAT(text, ContainsSubstring("channel 5"));
      }
    }
  }
}

TEST_CASE("Tensors and quantizers of another shape are refused") {
  KVQ_BOTH_WAYS();
  const std::vector<AttentionInput> window = random_window(7);
  auto other = make_quantizer("int4");
  other->shape.kv_heads = 1;
  SimulatedCache cache(other, 1);
  CHECK_THROWS_AS(cache.attend(window[0]), Error);
  auto short_of_layers = make_quantizer("int4");
  short_of_layers->layers.pop_back();
  CHECK_THROWS_AS(SimulatedCache(short_of_layers, 1), Error);
}

TEST_CASE("What is counted are the exact values that were seen") {
  KVQ_BOTH_WAYS();
  std::vector<AttentionInput> window = random_window(8);
  for (AttentionInput& layer : window) layer.key.mul_(0.5);  // all inside the thresholds
  SimulatedCache cache(make_quantizer("int4-5%"), 1);
  run(cache, window, {kTokens});
  const Footprint calm = cache.footprint();
  window[0].key.narrow(0, 64, 64).fill_(0.99);  // layer 0, one page: all outliers, 32 capacity entries
  cache.reset();
  run(cache, window, {kTokens});
  CHECK(cache.footprint().outliers - calm.outliers == (64 * 16 - 32) / 8 * 36);
}

TEST_CASE("Only the parts asked for are quantized") {
  KVQ_BOTH_WAYS();
  const auto window = random_window(5);
  const auto quantizer = make_quantizer("int2");
  ExactAttention exact(kShape, rope_params());
  const at::Tensor unquantized = run(exact, window, {kTokens}, 1);
  const auto with = [&](const CacheParts& parts) {
    SimulatedCache cache(quantizer, 1, parts);
    return run(cache, window, {kTokens}, 1);
  };
  CHECK(with({{0}, std::nullopt}).equal(unquantized));
  CHECK(with({{1}, std::nullopt}).equal(with({})));
  const at::Tensor keys = with({{1}, Side::Key}), values = with({{}, Side::Value});
  CHECK_FALSE(keys.equal(unquantized));
  CHECK_FALSE(values.equal(unquantized));
  CHECK_FALSE(keys.equal(values));

  // By hand: exact keys with quantized values are the exact backend on what a round trip leaves.
  auto by_hand = window;
  at::Tensor value = window[1].value.clone();
  std::span<float> all(value.mutable_data_ptr<float>(), static_cast<std::size_t>(value.numel()));
  const SideEncoder encoder(quantizer->layers[1].value);
  const auto sink = static_cast<std::size_t>(kShape.width());
  encoder.round_exact(all.first(sink));
  encoder.round_trip(all.subspan(sink), 1);
  by_hand[1].value = value;
  exact.reset();
  CHECK(run(exact, by_hand, {kTokens}, 1).equal(values));
  try {
    with({{2}, std::nullopt});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("layer 2") && ContainsSubstring("0 to 1"));
  }
  CHECK_THROWS_AS(make_cache(CacheKind::Packed, quantizer, 1, {{0}, std::nullopt}), Error);
}
