// Caches whose newest tokens wait to be quantized: one teacher-forced pass against decode loops, one of them written
// here from KIVI's description.

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include "cache/random_attention.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const KvShape kShape = {1, 4, 2, 32};  // layers, heads, kv_heads, head_dim
constexpr int kWidth = 64, kDim = 32;

std::shared_ptr<Quantizer> make_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = kShape;
  quantizer->rope.rotary_dim = kDim;
  LayerQuantizer parts;
  for (const Side which : kSides) {
    SideQuantizer& side = parts.side(which);
    side.recipe = quantizer->recipe.side(which);
    side.kv_heads = kShape.kv_heads, side.head_dim = kShape.head_dim;
    for (int book = 0; book < codebook_count(side.recipe, side.kv_heads, side.head_dim); ++book)
      side.codebooks.push_back(uniform_codebook(side.recipe.bits));
    if (!stores_thresholds(side.recipe)) continue;
    const float bound = side.recipe.outliers > 0 ? 0.9f : side.recipe.post_rope ? 1.5f : 1.0f;
    side.lower.assign(kWidth, -bound);
    side.upper.assign(kWidth, bound);
    side.outlier_rate = 0.1;
  }
  quantizer->layers.push_back(parts);
  return quantizer;
}

AttentionInput random_window(std::int64_t tokens, std::uint64_t seed) {
  Rng rng(seed);
  return random_attention(0, tokens, kShape, 2.0f, rng);
}

at::Tensor run(SimulatedCache& cache, const AttentionInput& window, const std::vector<std::int64_t>& chunks,
               at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : chunks) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count).to(dtype); };
    results.push_back(cache.attend({0, first, part(window.query), part(window.key), part(window.value)}));
    first += count;
  }
  return at::cat(results, 0);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kFloat).contiguous(), y = b.to(at::kFloat).contiguous();
  double largest = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    largest = std::max<double>(largest, std::abs(x.const_data_ptr<float>()[i] - y.const_data_ptr<float>()[i]));
  return largest;
}

std::vector<double> rotated(const float* row, std::int64_t position) {
  std::vector<double> out(kDim);
  for (int pair = 0; pair < kDim / 2; ++pair) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / kDim);
    out[pair] = row[pair] * std::cos(angle) - row[pair + kDim / 2] * std::sin(angle);
    out[pair + kDim / 2] = row[pair + kDim / 2] * std::cos(angle) + row[pair] * std::sin(angle);
  }
  return out;
}

using Token = std::vector<double>;  ///< `[kv_heads, head_dim]`

double half(double x) { return half_to_float(float_to_half(static_cast<float>(x))); }

/// min, max to what is stored of them and back: the formula of the encoder, in double.
double quantized(double x, double least, double most, int bits) {
  const double zero = half(0.5 * least + 0.5 * most), scale = half(std::max(most - zero, zero - least));
  const int levels = (1 << bits) - 1;
  if (scale == 0) return zero;
  const double code = std::clamp(std::ceil(((x - zero) / scale + 1) / 2 * levels - 0.5), 0.0, double(levels));
  return zero + scale * (2 * code / levels - 1);
}

/// KIVI as a decode loop: what it holds is lists of tokens, and every new token is first appended, then what is full is
/// quantized, then the query is answered.
struct KiviLoop {
  int bits, group, residual;
  std::vector<Token> coded_keys, coded_values;
  std::deque<Token> exact_keys, exact_values;

  void append(const Token& key, const Token& value) {
    exact_keys.push_back(key);
    exact_values.push_back(value);
    if (static_cast<int>(exact_keys.size()) == residual) {
      for (int first = 0; first < residual; first += group) {
        std::vector<Token> coded(exact_keys.begin() + first, exact_keys.begin() + first + group);
        for (int c = 0; c < kWidth; ++c) {
          double least = INFINITY, most = -INFINITY;
          for (int t = first; t < first + group; ++t) {
            least = std::min(least, exact_keys[t][c]), most = std::max(most, exact_keys[t][c]);
          }
          for (Token& token : coded) token[c] = quantized(token[c], least, most, bits);
        }
        coded_keys.insert(coded_keys.end(), coded.begin(), coded.end());
      }
      exact_keys.clear();
    }
    if (static_cast<int>(exact_values.size()) > residual) {
      Token token = exact_values.front();
      exact_values.pop_front();
      for (int first = 0; first < kWidth; first += group) {
        const auto [least, most] = std::minmax_element(token.begin() + first, token.begin() + first + group);
        const double low = *least, high = *most;
        for (int c = first; c < first + group; ++c) token[c] = quantized(token[c], low, high, bits);
      }
      coded_values.push_back(token);
    }
  }

  std::vector<double> answer(const float* query, std::int64_t position) const {
    std::vector<Token> keys = coded_keys, values = coded_values;
    keys.insert(keys.end(), exact_keys.begin(), exact_keys.end());
    values.insert(values.end(), exact_values.begin(), exact_values.end());
    std::vector<double> result;
    for (int head = 0; head < kShape.heads; ++head) {
      const int offset = head / (kShape.heads / kShape.kv_heads) * kDim;
      const std::vector<double> q = rotated(query + head * kDim, position);
      std::vector<double> sum(kDim);
      double total = 0;
      for (std::size_t t = 0; t < keys.size(); ++t) {
        double score = 0;
        for (int c = 0; c < kDim; ++c) score += q[c] * keys[t][offset + c];
        const double weight = std::exp(score / std::sqrt(double(kDim)));
        total += weight;
        for (int c = 0; c < kDim; ++c) sum[c] += weight * values[t][offset + c];
      }
      for (const double x : sum) result.push_back(x / total);
    }
    return result;
  }
};

}  // namespace

TEST_CASE("KIVI in one pass is KIVI token by token") {
  KVQ_BOTH_WAYS();
  constexpr std::int64_t kTokens = 150;
  const AttentionInput window = random_window(kTokens, 1);
  for (const auto& [recipe, bits, group, residual] : {std::tuple<std::string, int, int, int>{"kivi2", 2, 32, 128},
                                                      {"kivi4:group=16,recent=32", 4, 16, 32},
                                                      {"kivi2:group=32,recent=32", 2, 32, 32},
                                                      {"kivi3:group=8,recent=64", 3, 8, 64}}) {
    INFO(recipe);
    SimulatedCache cache(make_quantizer(recipe), 2);
    const at::Tensor result = run(cache, window, {kTokens});
    KiviLoop loop{bits, group, residual, {}, {}, {}, {}};
    double worst = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      Token key, value;
      for (int head = 0; head < kShape.kv_heads; ++head) {
        const std::int64_t at = (t * kShape.kv_heads + head) * kDim;
        for (const double x : rotated(window.key.const_data_ptr<float>() + at, t)) key.push_back(half(x));
        for (int c = 0; c < kDim; ++c) value.push_back(half(window.value.const_data_ptr<float>()[at + c]));
      }
      loop.append(key, value);
      const auto expected = loop.answer(window.query.const_data_ptr<float>() + t * kShape.heads * kDim, t);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        worst = std::max(worst, std::abs(expected[i] - result.const_data_ptr<float>()[t * kShape.heads * kDim + i]));
      }
    }
    // A value in the middle between two levels may fall to either in double and in float: then one key of many differs.
    CHECK(worst < 2e-3);
  }
}

TEST_CASE("Tokens that wait make the same cache in any chunks") {
  KVQ_BOTH_WAYS();
  constexpr std::int64_t kTokens = 150;
  const AttentionInput window = random_window(kTokens, 2);
  const std::vector<std::vector<std::int64_t>> chunkings = {
      std::vector<std::int64_t>(kTokens, 1), {7, 1, 64, 2, 76}, {1, 149}, {63, 2, 85}, {32, 32, 32, 32, 22}};
  for (const std::string recipe :
       {"kivi2:group=16,recent=32", "kivi4", "int3-5%:recent=20,sink=3", "int2:key=channel-group,group=8,sink=4",
        "K=int3:recent=9,flush=5,sink=2/V=int3-4%:recent=31", "q4_0:recent=7", "fp8:sink=5,flush=16",
        "int2-5%:key=channel-group,value=channel-group,rule=threshold,group=16", "int2:recent=1000"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      INFO(recipe);
      SimulatedCache cache(make_quantizer(recipe), 2);
      const at::Tensor whole = run(cache, window, {kTokens}, dtype);
      CHECK(whole.scalar_type() == dtype);
      CHECK(cache.tokens() == kTokens);
      const Footprint footprint = cache.footprint();
      for (const auto& chunks : chunkings) {
        cache.reset();
        CHECK(largest_difference(whole, run(cache, window, chunks, dtype)) < (dtype == at::kFloat ? 3e-6 : 1e-2));
        CHECK(cache.footprint() == footprint);
      }
    }
  }
}

TEST_CASE("A query sees a token exact until it is quantized, and quantized from then on") {
  KVQ_BOTH_WAYS();
  constexpr std::int64_t kTokens = 40;
  AttentionInput window = random_window(kTokens, 3);
  ExactAttention reference(kShape, make_quantizer("int4")->rope);
  const at::Tensor exact = reference.attend(window);
  const auto first_damage = [&](const std::string& recipe) {
    SimulatedCache cache(make_quantizer(recipe), 1);
    const at::Tensor result = run(cache, window, {kTokens});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (largest_difference(exact.narrow(0, t, 1), result.narrow(0, t, 1)) > 3e-3) return t;
    }
    return kTokens;
  };
  // Position of the first query that sees a quantized token.
  CHECK(first_damage("int1:sink=0") == 0);
  CHECK(first_damage("int1:sink=0,recent=10") == 10);
  CHECK(first_damage("int1:sink=4,recent=10") == 14);
  CHECK(first_damage("int1:sink=0,flush=16") == 15);
  CHECK(first_damage("int1:sink=0,flush=16,recent=5") == 20);
  CHECK(first_damage("int1:sink=12,flush=8") == 15);
  CHECK(first_damage("int1:sink=0,key=channel-group,value=channel-group,group=32") == 31);
  CHECK(first_damage("int1:sink=0,recent=40") == kTokens);
}

TEST_CASE("Parts of a cache that are not quantized wait for nothing") {
  KVQ_BOTH_WAYS();
  constexpr std::int64_t kTokens = 40;
  const AttentionInput window = random_window(kTokens, 5);
  ExactAttention reference(kShape, make_quantizer("int4")->rope);
  const at::Tensor exact = reference.attend(window);
  const auto quantizer = make_quantizer("K=int1:sink=0,recent=20/V=int1:sink=0,flush=32");
  const auto first_damage = [&](const CacheParts& parts) {
    SimulatedCache cache(quantizer, 1, parts);
    const at::Tensor result = run(cache, window, {7, 1, kTokens - 8});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (largest_difference(exact.narrow(0, t, 1), result.narrow(0, t, 1)) > 3e-3) return t;
    }
    return kTokens;
  };
  CHECK(first_damage({{}, Side::Key}) == 20);
  CHECK(first_damage({{}, Side::Value}) == 31);
  CHECK(first_damage({}) == 20);
}

TEST_CASE("With nothing recent the pass with both forms is the plain one") {
  KVQ_BOTH_WAYS();
  constexpr std::int64_t kTokens = 300;  // more than one block of queries
  const AttentionInput window = random_window(kTokens, 4);
  // Waiting for keys alone: values take the way of those that do not wait.
  SimulatedCache plain(make_quantizer("int8:sink=0"), 2), waiting(make_quantizer("K=int8:sink=0,recent=299/V=int8"), 2);
  const at::Tensor a = run(plain, window, {kTokens}), b = run(waiting, window, {kTokens});
  CHECK(largest_difference(a, b) > 0);
  CHECK(largest_difference(a, b) < 2e-2);
  ExactAttention reference(kShape, make_quantizer("int4")->rope);
  SimulatedCache all_exact(make_quantizer("int2:recent=300"), 2);
  CHECK(largest_difference(reference.attend(window), run(all_exact, window, {kTokens})) < 1e-3);
}

TEST_CASE("Static ranges of tokens and groups of channels are held packed, bit for bit as simulated") {
  constexpr std::int64_t kTokens = 130;
  const AttentionInput window = random_window(kTokens, 5);
  for (const std::string recipe : {"K=int4-5%:key=token,range=static/V=int3:value=token-group,range=static"}) {
    SimulatedCache simulated(make_quantizer(recipe), 2);
    const auto packed = make_cache(CacheKind::Packed, make_quantizer(recipe), 2);
    const at::Tensor a = run(simulated, window, {kTokens});
    const at::Tensor b = packed->attend(window);
    CHECK(largest_difference(a, b) < 5e-6);
    CHECK(packed->bytes() == simulated.bytes());
  }
}
