// Codecs of head vectors in the simulated cache: one pass against a loop over tokens written here, portions of any
// size, and counted bytes against those of the blocks that encode() makes.

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "quant/codec_support.h"
#include "support/catch.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/vector/vector_sizes.h>

using namespace kvq;
using kvq::test::codec_quantizer;
using kvq::test::head_rows;
using kvq::test::rows_of_head;

namespace {

const KvShape kShape = {2, 4, 2, 16};  // layers, heads, kv_heads, head_dim
constexpr int kWidth = 32, kDim = 16;
constexpr std::int64_t kTokens = 100;

struct Window {
  at::Tensor query, key, value;
};

at::Tensor tensor_of(const std::vector<float>& x, int heads) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(x.size()) / (heads * kDim), heads, kDim},
                                at::TensorOptions().dtype(at::kFloat));
  std::copy(x.begin(), x.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

Window random_window(std::uint64_t seed) {
  const KvShape queries = {1, 4, 4, kDim};
  return {tensor_of(head_rows(kTokens, queries, seed), 4), tensor_of(head_rows(kTokens, kShape, seed + 1), 2),
          tensor_of(head_rows(kTokens, kShape, seed + 2), 2)};
}

/// Layer 0's outputs.
at::Tensor run(SimulatedCache& cache, const Window& window, const std::vector<std::int64_t>& portions) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : portions) {
    for (int layer = 0; layer < kShape.layers; ++layer) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      const at::Tensor out = cache.attend({layer, first, part(window.query), part(window.key), part(window.value)});
      if (layer == 0) results.push_back(out);
    }
    first += count;
  }
  return at::cat(results, 0);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    largest = std::max<double>(largest, std::abs(a.const_data_ptr<float>()[i] - b.const_data_ptr<float>()[i]));
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

/// What the cache holds of one side for the query at `position`, by the codec's own encode() and decode() of blocks.
/// `x`: values that fp16 holds, as what waits and sinks.
std::vector<float> held(const SideQuantizer& side, int sinks, std::vector<float> x, std::int64_t position) {
  const std::int64_t block = block_rows(side.recipe.vector), length = position + 1;
  const std::int64_t coded = needs_whole_blocks(side.recipe.vector) ? length / block * block : length;
  const auto codecs = head_codecs(side);
  for (int head = 0; head < 2; ++head) {
    for (std::int64_t begin = sinks; begin < coded;) {
      const std::int64_t end = std::min((begin / block + 1) * block, coded);
      std::vector<float> rows;
      for (std::int64_t token = begin; token < end; ++token)
        rows.insert(rows.end(), x.begin() + token * kWidth + head * kDim,
                    x.begin() + token * kWidth + (head + 1) * kDim);
      std::vector<std::byte> bytes;
      codecs[static_cast<std::size_t>(head)]->encode(rows, bytes);
      codecs[static_cast<std::size_t>(head)]->decode(bytes, rows);
      for (std::int64_t token = begin; token < end; ++token)
        std::copy_n(rows.begin() + (token - begin) * kDim, kDim, x.begin() + token * kWidth + head * kDim);
      begin = end;
    }
  }
  return x;
}

std::vector<float> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

/// Values that fp16 holds, so that what is coded at once and what waits first are the same numbers.
Window in_half(Window window) {
  for (at::Tensor* x : {&window.key, &window.value}) {
    float* data = x->mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x->numel(); ++i) data[i] = half_to_float(float_to_half(data[i]));
  }
  return window;
}

const std::vector<std::string> kCodecRecipes = {"delta3:anchor=16,sink=3",
                                                "delta2:anchor=16,abits=4,threshold=0.7,share=head",
                                                "scalar4:entropy=rans,page=32",
                                                "scalar3:entropy=huffman,page=32,share=head,sink=0",
                                                "scalar3:lowrank=2,page=32",
                                                "pq:m=4,bits=5",
                                                "scalar3:sink=2",
                                                "K=pq:m=4,bits=4,lowrank=1,page=16/V=delta3:anchor=32",
                                                "delta3:recent=10,anchor=16",
                                                "scalar3:rope=post,lowrank=2,page=16,flush=32,recent=5"};

}  // namespace

TEST_CASE("Each query sees the blocks that a cache has decoded by then, and what waits as it is") {
  const Window window = in_half(random_window(31));
  for (const std::string recipe :
       {"delta3:anchor=16,sink=3", "scalar4:entropy=rans,page=32", "pq:m=4,bits=5", "scalar3:lowrank=2,page=32,sink=1",
        "K=delta2:anchor=32,sink=2/V=scalar3:lowrank=1,page=16"}) {
    INFO(recipe);
    const auto quantizer = std::make_shared<const Quantizer>(codec_quantizer(recipe, kShape));
    SimulatedCache cache(quantizer, 2);
    const at::Tensor found = run(cache, window, {kTokens});
    const std::vector<float> queries = numbers(window.query);
    for (const std::int64_t position :
         {std::int64_t{0}, std::int64_t{5}, std::int64_t{31}, std::int64_t{32}, kTokens - 1}) {
      const std::vector<float> keys =
          held(quantizer->layers[0].key, quantizer->recipe.sinks, numbers(window.key), position);
      const std::vector<float> values =
          held(quantizer->layers[0].value, quantizer->recipe.sinks, numbers(window.value), position);
      for (int head = 0; head < 4; ++head) {
        const std::vector<double> query = rotated(queries.data() + (position * 4 + head) * kDim, position);
        std::vector<double> weights;
        for (std::int64_t token = 0; token <= position; ++token) {
          const std::vector<double> key = rotated(keys.data() + token * kWidth + head / 2 * kDim, token);
          weights.push_back(
              std::exp(std::inner_product(query.begin(), query.end(), key.begin(), 0.0) / std::sqrt(double(kDim))));
        }
        const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int channel = 0; channel < kDim; ++channel) {
          double sum = 0;
          for (std::int64_t token = 0; token <= position; ++token)
            sum += weights[static_cast<std::size_t>(token)] / all *
                   static_cast<double>(values[static_cast<std::size_t>(token * kWidth + head / 2 * kDim + channel)]);
          const float got = found.const_data_ptr<float>()[(position * 4 + head) * kDim + channel];
          CHECK(static_cast<double>(got) == Approx(sum).margin(2e-5));
        }
      }
    }
  }
}

TEST_CASE("Codecs give the same cache whatever the portions, one token at a time included, and again after reset()") {
  const Window window = random_window(41);
  for (const std::string& recipe : kCodecRecipes) {
    INFO(recipe);
    const auto quantizer = std::make_shared<const Quantizer>(codec_quantizer(recipe, kShape));
    SimulatedCache once(quantizer, 2);
    const at::Tensor whole = run(once, window, {kTokens});
    for (const std::vector<std::int64_t>& portions :
         {std::vector<std::int64_t>(kTokens, 1), std::vector<std::int64_t>{15, 1, 1, 15, 33, 35}}) {
      SimulatedCache cache(quantizer, 1);
      CHECK(largest_difference(run(cache, window, portions), whole) < 2e-6);
      CHECK(cache.footprint() == once.footprint());
    }
    const Footprint counted = once.footprint();
    once.reset();
    CHECK(largest_difference(run(once, window, {64, 36}), whole) < 2e-6);
    CHECK(once.footprint() == counted);
  }
}

TEST_CASE("Counted bytes are those of the blocks that are stored, page by page") {
  const Window window = random_window(51);
  for (const std::string recipe :
       {"scalar4:entropy=rans,page=32", "scalar3:entropy=huffman,page=16,share=head,sink=2",
        "delta2:anchor=16,abits=5,threshold=0.6,sink=3", "delta3:anchor=16", "scalar3:lowrank=2,page=32"}) {
    INFO(recipe);
    const auto quantizer = std::make_shared<const Quantizer>(codec_quantizer(recipe, kShape));
    SimulatedCache cache(quantizer, 2);
    run(cache, window, {50, 1, kTokens - 51});
    std::int64_t codes = 0, padding = 0, blocks = 0;
    for (const Side which : kSides) {
      const SideQuantizer& side = quantizer->layers[0].side(which);
      const VectorRecipe& codec = side.recipe.vector;
      const auto codecs = head_codecs(side);
      std::vector<float> x = numbers(which == Side::Key ? window.key : window.value);
      if (needs_whole_blocks(codec))
        for (float& value : x) value = half_to_float(float_to_half(value));
      const std::int64_t rows = block_rows(codec);
      const auto count = [&](std::int64_t bytes) {
        if (has_varying_blocks(codec)) bytes += 2 * 4;  // each head's length
        codes += bytes;
        padding += (bytes + 15) / 16 * 16 - bytes;
        ++blocks;
      };
      for (std::int64_t first = 0; first + rows <= kTokens; first += rows) {
        const std::int64_t begin = std::max<std::int64_t>(first, quantizer->recipe.sinks);
        std::int64_t bytes = 0;
        for (int head = 0; head < 2; ++head) {
          std::vector<std::byte> encoded;
          codecs[static_cast<std::size_t>(head)]->encode(
              std::span<const float>(rows_of_head(x, kShape, head))
                  .subspan(static_cast<std::size_t>(begin * kDim),
                           static_cast<std::size_t>((first + rows - begin) * kDim)),
              encoded);
          bytes += static_cast<std::int64_t>(encoded.size());
        }
        count(bytes);
      }
      if (!needs_whole_blocks(codec)) count(2 * most_block_bytes(codec, kDim, rows));  // room of the open one
    }
    const Footprint found = cache.footprint();
    CHECK(found.codes == kShape.layers * codes);
    CHECK(found.padding == kShape.layers * padding);
    CHECK(found.tables == kShape.layers * blocks * 4);
    const std::int64_t room = needs_whole_blocks(quantizer->recipe.key.vector) ? 32 : 0;
    CHECK(found.exact == kShape.layers * 2 * (quantizer->recipe.sinks + room) * kWidth * 2);
    CHECK(cache.bytes() == found.total());
    // Where nothing varies, the forecast is what was counted.
    if (!has_varying_blocks(quantizer->recipe.key.vector)) CHECK(forecast_footprint(*quantizer, kTokens) == found);
  }
}

TEST_CASE("A head vector that a codec cannot hold is named with layer, side and token") {
  Window window = random_window(61);
  window.key.mutable_data_ptr<float>()[70 * kWidth + kDim + 3] = 1e7f;
  for (const std::string recipe : {"delta3:anchor=16", "scalar4:entropy=rans", "pq:m=4,bits=5,norm"}) {
    const auto quantizer = std::make_shared<const Quantizer>(codec_quantizer(recipe, kShape));
    SimulatedCache cache(quantizer, 2);
    INFO(recipe);
    CHECK_THROWS_WITH(run(cache, window, {60, 40}),
                      ContainsSubstring("layer 0") && ContainsSubstring("key") && ContainsSubstring("token 70"));
  }
}
