// Not part of a test run: `test_cache "[bench]"` measures decode attention over packed bits beside libtorch's over
// fp32, in one run, 8K tokens, with 2 threads or $KVQ_BENCH_THREADS.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "cache/packed_support.h"
#include "support/catch.h"

#include <kvq/cache/packed_attention.h>
#include <kvq/model/threads.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/vector/turbo_codec.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::int64_t kTokens = 8192;

/// Median microseconds; layers in turn, so that each call reads memory that the calls before have driven out.
double median_time(int calls, const std::function<void(int)>& work) {
  std::vector<double> times;
  for (int call = 0; call < calls; ++call) {
    const auto start = std::chrono::steady_clock::now();
    work(call);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls / 2)];
}

/// Normal data: thresholds that leave 1 % outside.
std::shared_ptr<Quantizer> normal_quantizer(const std::string& recipe, const KvShape& shape) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = shape;
  quantizer->rope.rotary_dim = shape.head_dim;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer->recipe.side(which);
    side.kv_heads = shape.kv_heads, side.head_dim = shape.head_dim;
    if (side.recipe.codebook == CodebookKind::Turbo)
      side.turbo =
          std::make_shared<const TurboTables>(make_turbo_tables(side.recipe.turbo, side.recipe.bits, shape.head_dim));
    if (!has_own_format(side.recipe.codebook)) side.codebooks = {normal_float_codebook(side.recipe.bits)};
    if (side.recipe.range != RangeKind::Static) continue;
    const float bound = side.recipe.outliers > 0.0 ? 2.576f : 5.0f;
    side.lower.assign(static_cast<std::size_t>(side.width()), -bound);
    side.upper.assign(static_cast<std::size_t>(side.width()), bound);
    side.outlier_rate = side.recipe.outliers;
  }
  quantizer->layers.assign(static_cast<std::size_t>(shape.layers), layer);
  return quantizer;
}

}  // namespace

TEST_CASE("Decode attention over packed bits against fp32 attention of libtorch", "[.][bench]") {
  const char* chosen = std::getenv("KVQ_BENCH_THREADS");
  const int threads = chosen && *chosen ? std::atoi(chosen) : 2;
  set_compute_threads(threads);
  const c10::InferenceMode no_gradients;
  std::string table = fmt::format("{} tokens, {} threads; µs a layer, median of 60\n", kTokens, threads);
  for (const KvShape& shape : {KvShape{8, 9, 3, 64}, KvShape{4, 32, 8, 128}}) {
    std::vector<at::Tensor> keys, values, torch_keys, torch_values;
    for (int layer = 0; layer < shape.layers; ++layer) {
      keys.push_back(at::randn({kTokens, shape.kv_heads, shape.head_dim}));
      values.push_back(at::randn({kTokens, shape.kv_heads, shape.head_dim}));
      torch_keys.push_back(keys.back().permute({1, 0, 2}).unsqueeze(0).contiguous());
      torch_values.push_back(values.back().permute({1, 0, 2}).unsqueeze(0).contiguous());
    }
    const at::Tensor query = at::randn({1, shape.heads, shape.head_dim});
    const at::Tensor torch_query = query.permute({1, 0, 2}).unsqueeze(0).contiguous();
    const double fp32 = median_time(60, [&](int call) {
      const auto layer = static_cast<std::size_t>(call % shape.layers);
      at::scaled_dot_product_attention(torch_query, torch_keys[layer], torch_values[layer], std::nullopt, 0.0, false,
                                       std::nullopt, true);
    });
    table +=
        fmt::format("{} query, {} kv heads of {}: fp32 {:.0f}\n", shape.heads, shape.kv_heads, shape.head_dim, fp32);
    for (const std::string recipe : {"nf2-1%", "nf3-1%", "nf4", "nf4-1%", "nf5-1%", "nf6-1%", "nf8-1%", "q4_0", "q8_0",
                                     "fp8", "turbo4:rotation=hadamard", "turbo4", "turbo4:rope=post"}) {
      PackedSequence sequence(std::make_shared<PackedPool>(normal_quantizer(recipe, shape)));
      for (int layer = 0; layer < shape.layers; ++layer) {
        const auto index = static_cast<std::size_t>(layer);
        sequence.append(layer, numbers(keys[index]), numbers(values[index]), threads);
      }
      PackedAttention attention(threads);
      std::vector<float> out(static_cast<std::size_t>(query.numel()));
      const double packed =
          median_time(60, [&](int call) { attention.attend(sequence, call % shape.layers, numbers(query), out); });
      const at::Tensor key = keys[0].narrow(0, 0, 1), value = values[0].narrow(0, 0, 1);
      const double append =
          median_time(60, [&](int call) { sequence.append(call % shape.layers, numbers(key), numbers(value), 1); });
      table +=
          fmt::format("  {:24} {:6.0f}: {:4.2f} times fp32's speed, {:4.1f} times smaller; append of a token {:.1f}\n",
                      recipe, packed, fp32 / packed,
                      8.0 * kTokens * shape.width() * shape.layers / static_cast<double>(sequence.bytes()), append);
      if (recipe == "nf4-1%") CHECK(fp32 / packed >= 1.5);
    }
  }
  WARN(table);
}
