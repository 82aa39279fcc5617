// Evaluation on caches that really hold packed bits.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include <c10/core/InferenceMode.h>

#include "support/fake_model.h"

#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/eval/perplexity.h>
#include <kvq/model/model.h>
#include <kvq/model/rope.h>
#include <kvq/quant/codebook.h>
#include <kvq/quant/scaled_half.h>

// Last, because libtorch has a macro CHECK too.
#include "support/catch.h"
#include "support/shared_data.h"
#include "support/skip.h"
#include "support/test_model.h"

using namespace kvq;
using kvq::test::FakeModel;

namespace {

/// Keys and values of the model's layers, as they pass.
struct Collector final : KvObserver {
  std::map<std::pair<int, Side>, std::vector<float>> seen;
  void observe(const AttentionInput& input) override {
    for (const Side side : kSides) {
      const at::Tensor x = (side == Side::Key ? input.key : input.value).to(at::kFloat).contiguous();
      auto& numbers = seen[{input.layer, side}];
      numbers.insert(numbers.end(), x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel());
    }
  }
};

/// Thresholds of a text: percentiles 0.5 and 99.5 of each channel; NormalFloat codebooks.
std::shared_ptr<Quantizer> fitted(Model& model, const std::vector<std::int32_t>& ids, const std::string& recipe) {
  const c10::InferenceMode no_gradients;
  const ModelConfig& config = model.config();
  Collector collector;
  ExactAttention exact(config.kv, config.rope);
  at::Tensor hidden = model.embed(ids);
  for (int layer = 0; layer < config.kv.layers; ++layer)
    hidden = model.layer_forward(layer, hidden, 0, exact, &collector);
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = config.kv;
  quantizer->rope = config.rope;
  for (int layer = 0; layer < config.kv.layers; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = config.kv.kv_heads, side.head_dim = config.kv.head_dim;
      side.codebooks = {normal_float_codebook(side.recipe.bits)};
      const std::vector<float>& x = collector.seen[{layer, which}];
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::abs(value));
      side.exponent = choose_exponent(largest);
      if (side.recipe.range != RangeKind::Static) continue;
      side.outlier_rate = 0.01;
      const auto width = static_cast<std::size_t>(side.width());
      for (std::size_t channel = 0; channel < width; ++channel) {
        std::vector<float> column;
        for (std::size_t at = channel + width; at < x.size(); at += width) column.push_back(x[at]);  // without the sink
        std::sort(column.begin(), column.end());
        side.lower.push_back(column[column.size() / 200]);
        side.upper.push_back(column[column.size() - 1 - column.size() / 200]);
      }
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

/// Asks both caches and goes on with the simulated one's answer.
struct Both final : AttentionBackend {
  SimulatedCache simulated;
  PackedCache packed;
  double largest_relative = 0;  ///< difference, relative to the largest number of the answer

  explicit Both(const std::shared_ptr<const Quantizer>& quantizer) : simulated(quantizer, 1), packed(quantizer, 1) {}
  at::Tensor attend(const AttentionInput& input) override {
    const at::Tensor expected = simulated.attend(input).contiguous(), result = packed.attend(input).contiguous();
    double difference = 0, largest = 0;
    for (std::int64_t i = 0; i < expected.numel(); ++i) {
      const double a = expected.const_data_ptr<float>()[i], b = result.const_data_ptr<float>()[i];
      difference = std::max(difference, std::abs(a - b));
      largest = std::max(largest, std::abs(a));
    }
    largest_relative = std::max(largest_relative, difference / largest);
    return expected;
  }
  void reset() override {}
};

}  // namespace

TEST_CASE("The packed cache is judged as the simulated one, with the bytes that it holds") {
  FakeModel model;
  Rng rng(2);
  std::vector<Window> windows(2);
  for (Window& window : windows) {
    for (int token = 0; token < 70; ++token) window.ids.push_back(static_cast<std::int32_t>(rng.below(24)));
  }
  const auto quantizer = fitted(model, windows[0].ids, "nf3-2%");
  const auto report = evaluate_perplexity(
      model, windows, {{"simulated", quantizer}, {"packed", quantizer, CacheKind::Packed}}, nullptr, quiet_context());
  const VariantResult &simulated = report.results[1], &packed = report.results[2];
  CHECK(simulated.kl_mean > 0);
  for (int window = 0; window < 2; ++window) {
    CHECK(packed.window_nll[window] == Approx(simulated.window_nll[window]).epsilon(1e-5));
  }
  CHECK(packed.kl_mean == Approx(simulated.kl_mean).epsilon(1e-3));
  CHECK(packed.cache_bytes == simulated.cache_bytes);
  CHECK(packed.bits_counted == simulated.bits_counted);
}

TEST_CASE("SmolLM2 on the packed cache: the same attention and, with many bits, the same NLL", "[model]") {
  const auto path = kvq::test::test_model();
  if (!path) KVQ_SKIP("no model on this machine");
  const auto reference = kvq::test::shared_data("reference/wikitext2_first4096_ids.json");
  if (!reference) KVQ_SKIP("no reference text on this machine");
  std::ifstream file(*reference);
  const auto ids = nlohmann::json::parse(file).at("first4096").get<std::vector<std::int32_t>>();
  const auto model = load_model(*path, {});
  const KvShape& shape = model->config().kv;
  const std::vector<std::int32_t> calibration(ids.begin() + 2048, ids.begin() + 2304);

  // The same keys, values and queries for both caches, layer by layer.
  for (const std::string recipe : {"nf4-1%", "nf2-1%:sink=4"}) {
    INFO(recipe);
    const c10::InferenceMode no_gradients;
    Both both(fitted(*model, calibration, recipe));
    at::Tensor hidden = model->embed({ids.begin(), ids.begin() + 256});
    for (int layer = 0; layer < shape.layers; ++layer) hidden = model->layer_forward(layer, hidden, 0, both, nullptr);
    CHECK(both.largest_relative < 2e-5);
    CHECK(both.packed.bytes() == both.simulated.bytes());
  }

  // By themselves the two go apart: a value within rounding of the border between two codes gets one here and the other
  // there, and later layers see different keys. The simulated cache does the same from one instruction set to another.
  // With 8 bits neighbouring codes are close, and little remains: 4e-4 measured.
  std::vector<Window> windows(2);
  for (std::size_t window = 0; window < 2; ++window) {
    windows[window].ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(512 * window),
                               ids.begin() + static_cast<std::ptrdiff_t>(512 * (window + 1)));
  }
  const auto quantizer = fitted(*model, calibration, "nf8-1%");
  const auto report = evaluate_perplexity(
      *model, windows, {{"simulated", quantizer}, {"packed", quantizer, CacheKind::Packed}}, nullptr, quiet_context());
  const VariantResult &simulated = report.results[1], &packed = report.results[2];
  CAPTURE(simulated.nll, packed.nll, simulated.kl_mean, packed.kl_mean, simulated.cache_bytes, packed.cache_bytes);
  CHECK(std::abs(packed.nll - simulated.nll) < 2e-3);
  CHECK(packed.kl_mean == Approx(simulated.kl_mean).epsilon(0.1));
  CHECK(static_cast<double>(packed.cache_bytes) == Approx(simulated.cache_bytes).epsilon(1e-3));
}
