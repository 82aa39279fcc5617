// How large the error of keys and values is where attention looks, for docs/claims.md. Not a test: hidden, and run as
//   KVQ_CLAIMS_TEXT=text.txt KVQ_CLAIMS_QUANTIZERS=FOLDER test_eval "[tiers-claims]"
// with quantizer files of the model that KVQ_TEST_MODEL names, or of the fetched one.
//
// Of an unquantized pass over windows of 512 tokens every layer's queries, keys and values go to each cache. With w the
// softmax weights of that pass, error = Σ w |x − x̂|² / Σ w |x|² over all queries and the tokens that they see, sinks
// left out, x̂ as the cache holds it when the query comes; then the geometric mean over the layers. "even" is the same
// with all weights 1.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ops/einsum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include "support/catch.h"
#include "support/skip.h"
#include "support/test_model.h"

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/model/model.h>
#include <kvq/model/rope.h>
#include <kvq/quant/footprint.h>
#include <kvq/text/tokenizer.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::int64_t kWindow = 512;

struct Recorder final : KvObserver {
  std::vector<AttentionInput> layers;
  void observe(const AttentionInput& input) override { layers.push_back(input); }
};

struct Sums {
  double error = 0, energy = 0;
};

/// One layer: by weights of the queries `[kv_heads, queries, tokens]` and of ones.
struct LayerSums {
  std::array<Sums, 2> weighted, even;  ///< by Side
};

at::Tensor squares(const at::Tensor& x) { return x.pow(2).sum(-1); }  // [tokens, kv_heads]

void add(Sums& sums, const at::Tensor& weights, const at::Tensor& errors, const at::Tensor& energy) {
  sums.error += at::einsum("hqt,th->", {weights, errors}).item<double>();
  sums.energy += at::einsum("hqt,th->", {weights, energy}).item<double>();
}

}  // namespace

TEST_CASE("Error where attention looks", "[.][tiers-claims]") {
  const char *text_path = std::getenv("KVQ_CLAIMS_TEXT"), *folder = std::getenv("KVQ_CLAIMS_QUANTIZERS");
  const auto path = test_model();
  if (!text_path || !folder || !path) KVQ_SKIP("KVQ_CLAIMS_TEXT, KVQ_CLAIMS_QUANTIZERS or the model is missing");
  const char* asked = std::getenv("KVQ_CLAIMS_WINDOWS");
  const std::int64_t windows = asked ? std::atoi(asked) : 1;
  const at::NoGradGuard no_graph;
  const auto model = load_model(*path, {});
  std::ifstream file(text_path);
  std::stringstream text;
  text << file.rdbuf();
  const std::vector<std::int32_t> ids = load_tokenizer(*path)->encode(text.str().substr(0, 1 << 20), false);
  REQUIRE(static_cast<std::int64_t>(ids.size()) >= windows * kWindow);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".h5") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::shared_ptr<const Quantizer>> quantizers;
  for (const auto& each : files) quantizers.push_back(std::make_shared<Quantizer>(read_quantizer(each).quantizer));
  const ModelConfig& config = model->config();
  std::vector<std::vector<LayerSums>> sums(files.size(), std::vector<LayerSums>(config.kv.layers));
  std::vector<double> bits(files.size());

  for (std::int64_t window = 0; window < windows; ++window) {
    Recorder recorder;
    ExactAttention exact(config.kv, config.rope);
    at::Tensor hidden = model->embed({ids.begin() + window * kWindow, ids.begin() + (window + 1) * kWindow});
    for (int layer = 0; layer < config.kv.layers; ++layer)
      hidden = model->layer_forward(layer, hidden, 0, exact, &recorder);
    RopeTables tables(config.rope);
    for (std::size_t index = 0; index < files.size(); ++index) {
      const Quantizer& quantizer = *quantizers[index];
      SimulatedCache cache(quantizers[index], 2);
      for (int layer = 0; layer < config.kv.layers; ++layer) {
        const AttentionInput& input = recorder.layers[layer];
        const at::Tensor sides[2] = {tables.of(layer).apply(input.key, 0), input.value};
        const at::Tensor query =
            tables.of(layer)
                .apply(input.query, 0)
                .reshape({kWindow, config.kv.kv_heads, config.kv.queries_per_kv_head(), config.kv.head_dim});
        const at::Tensor seen = at::ones({kWindow, kWindow}).tril();
        const at::Tensor scores =
            at::einsum("qhgd,thd->hgqt", {query, sides[0]}).div(std::sqrt(double(config.kv.head_dim)));
        at::Tensor weights = at::softmax(scores.masked_fill(seen.eq(0), -INFINITY), -1).sum(1);
        weights.narrow(2, 0, quantizer.recipe.sinks).zero_();
        at::Tensor ones = seen.unsqueeze(0).expand({config.kv.kv_heads, kWindow, kWindow}).contiguous();
        ones.narrow(2, 0, quantizer.recipe.sinks).zero_();
        LayerSums& of_layer = sums[index][layer];
        const auto judge = [&](std::int64_t first_query, std::int64_t count) {
          const std::int64_t tokens = first_query + count;
          for (const Side which : kSides) {
            const auto side = static_cast<std::size_t>(which);
            const at::Tensor x = sides[side].narrow(0, 0, tokens), errors = squares(cache.held(layer, which).sub(x));
            const auto part = [&](const at::Tensor& w) { return w.narrow(1, first_query, count).narrow(2, 0, tokens); };
            add(of_layer.weighted[side], part(weights), errors, squares(x));
            add(of_layer.even[side], part(ones), errors, squares(x));
          }
        };
        const std::int64_t step = quantizer.recipe.tiered() && !quantizer.recipe.is_oracle() ? 1 : kWindow;
        for (std::int64_t first = 0; first < kWindow; first += step) {
          const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, step); };
          cache.attend({layer, first, part(input.query), part(input.key), part(input.value)});
          judge(first, step);
        }
      }
      bits[index] = cache.footprint().bits_per_value(config.kv, kWindow);
    }
  }
  std::printf("%-64s %7s %7s  %9s %9s  %9s %9s\n", "recipe", "bits", "at 32K", "key", "value", "key even", "val even");
  for (std::size_t index = 0; index < files.size(); ++index) {
    const auto mean = [&](std::array<Sums, 2> LayerSums::*which, std::size_t side) {
      double logs = 0;
      for (const LayerSums& layer : sums[index])
        logs += std::log((layer.*which)[side].error / (layer.*which)[side].energy);
      return std::exp(logs / static_cast<double>(sums[index].size()));
    };
    std::printf("%-64s %7.3f %7.3f  %9.5f %9.5f  %9.5f %9.5f\n", short_form(quantizers[index]->recipe).c_str(),
                bits[index], forecast_footprint(*quantizers[index], 32768).bits_per_value(config.kv, 32768),
                mean(&LayerSums::weighted, 0), mean(&LayerSums::weighted, 1), mean(&LayerSums::even, 0),
                mean(&LayerSums::even, 1));
  }
}
