// Rows with quantized weights: what a file written by others stands for, and what is measured against what.
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/fake_model.h"

#include <kvq/core/error.h>
#include <kvq/eval/comparison.h>
#include <kvq/eval/decoded_weights.h>
#include <kvq/eval/generation.h>
#include <kvq/eval/passkey.h>
#include <kvq/eval/perplexity.h>
#include <kvq/eval/report.h>
#include <kvq/eval/variant.h>
#include <kvq/model/loss.h>
#include <kvq/model/rope.h>
#include <kvq/quant/footprint.h>

using namespace kvq;
using kvq::test::FakeModel;

namespace {

const std::string kTiny = KVQ_SOURCE_DIR "/tests/data/tiny/gqa-bias/model.gguf";

double loss_of(Model& model, const std::vector<std::int32_t>& ids) {
  ExactAttention exact(model.config().kv, model.config().rope);
  at::Tensor hidden = model.embed(ids);
  for (int layer = 0; layer < model.config().kv.layers; ++layer)
    hidden = model.layer_forward(layer, hidden, 0, exact, nullptr);
  return next_token_loss(model, hidden, ids, false).mean_nll;
}

/// Keys and values per token with the token's own range.
std::shared_ptr<const Quantizer> int4(const ModelConfig& config) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe("int4:key=token");
  quantizer->shape = config.kv;
  quantizer->rope = config.rope;
  for (int layer = 0; layer < config.kv.layers; ++layer) {
    LayerQuantizer sides;
    for (const Side side : kSides)
      sides.side(side) = {.recipe = quantizer->recipe.side(side),
                          .kv_heads = config.kv.kv_heads,
                          .head_dim = config.kv.head_dim,
                          .codebooks = {uniform_codebook(4)}};
    quantizer->layers.push_back(std::move(sides));
  }
  return quantizer;
}

std::vector<Window> random_windows(int count, int tokens, int vocab) {
  Rng rng(11);
  std::vector<Window> windows(static_cast<std::size_t>(count));
  for (Window& window : windows)
    for (int token = 0; token < tokens; ++token)
      window.ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return windows;
}

const WeightsSource kSource{"w4", "w4.h5", std::string(64, 'e'), 4.5, {{"weight-fisher", std::string(64, 'a')}}};

}  // namespace

TEST_CASE("With a file of weights that h5py wrote, the loss is what transformers finds with the same weights") {
  std::ifstream file(KVQ_SOURCE_DIR "/tests/golden/weights_gqa-bias.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  const auto reader = std::make_shared<const WeightsReader>(KVQ_SOURCE_DIR "/tests/golden/weights_gqa-bias.h5");
  reader->check();
  const auto model = load_model(kTiny, {});
  CHECK(reader->header().provenance.model_sha256 == model->sha256());
  for (const std::int64_t budget : {std::int64_t{-1}, std::int64_t{0}}) {
    const auto quantized = load_model_with(kTiny, {.weight_budget_bytes = budget}, decoded_weights(reader, 2), *model);
    for (std::size_t sequence = 0; sequence < 2; ++sequence) {
      const auto ids = expected.at("sequences").at(sequence).get<std::vector<std::int32_t>>();
      CHECK(loss_of(*model, ids) == Approx(expected.at("loss").at(sequence).get<double>()).epsilon(1e-6));
      CHECK(loss_of(*quantized, ids) == Approx(expected.at("loss_quantized").at(sequence).get<double>()).epsilon(1e-6));
    }
  }
}

TEST_CASE("Rows with other weights are those of the other model, measured against the unquantized one") {
  FakeModel model(24, 2, 1);
  const auto other = std::make_shared<FakeModel>(24, 2, 1);
  for (at::Tensor& weight : other->key_weight) weight = weight.mul(0.8);
  for (at::Tensor& weight : other->value_weight) weight = weight.mul(1.1);
  const auto windows = random_windows(5, 64, 24);
  const auto quantizer = int4(model.config());
  NamedQuantizer cache{"int4", quantizer}, weights, both{"int4 + w4", quantizer};
  cache.source.sha256 = both.source.sha256 = std::string(64, 'd');
  weights.name = "w4";
  weights.model = both.model = other;
  weights.weights = both.weights = kSource;
  const PerplexityReport report = evaluate_perplexity(model, windows, {cache, weights, both}, nullptr, quiet_context());
  REQUIRE(report.results.size() == 4);
  const PerplexityReport apart = evaluate_perplexity(*other, windows, {cache}, nullptr, quiet_context());

  // Losses of the other model alone, without and with the cache; the cache with the own weights as if nothing was
  // beside it.
  CHECK(report.results[2].window_nll == apart.results[0].window_nll);
  CHECK(report.results[3].window_nll == apart.results[1].window_nll);
  const PerplexityReport own = evaluate_perplexity(model, windows, {cache}, nullptr, quiet_context());
  CHECK(report.results[0].window_nll == own.results[0].window_nll);
  CHECK(report.results[1].window_nll == own.results[1].window_nll);
  CHECK(report.results[1].window_kl == own.results[1].window_kl);

  // Divergences are from the unquantized model, by hand for one window.
  std::vector<at::Tensor> hidden;
  for (Model* each : {static_cast<Model*>(&model), static_cast<Model*>(other.get())}) {
    ExactAttention exact(model.config().kv, model.config().rope);
    at::Tensor state = each->embed(windows[0].ids);
    for (int layer = 0; layer < 2; ++layer) state = each->layer_forward(layer, state, 0, exact, nullptr);
    hidden.push_back(state);
  }
  double kl = 0;
  const auto comparisons = compare_window(model, hidden, windows[0].ids);
  for (const float value : comparisons[1].kl) kl += value / 63.0;
  CHECK(report.results[2].window_kl[0] == Approx(kl).epsilon(1e-5));
  CHECK(report.results[2].delta_nll == Approx(report.results[2].nll - report.results[0].nll).epsilon(1e-9));

  // The cache of weights alone is the unquantized one.
  CHECK(report.results[2].weights == kSource);
  CHECK(report.results[2].bits_counted == 16);
  CHECK(report.results[2].cache_bytes == fp16_bytes(model.config().kv, 64));
  CHECK(report.results[2].cache.empty());
  CHECK(report.results[3].cache == "simulated");
  CHECK(report.results[3].bits_counted == report.results[1].bits_counted);
  CHECK_FALSE(report.results[1].weights.used());
  CHECK(report.results[1].layers.size() == 2);
  CHECK(report.results[2].layers.empty());
  CHECK(report.results[3].layers.empty());

  // What is recommended is a cache, judged with the model's own weights.
  const VariantResult* best = recommend(report, 100);
  REQUIRE(best != nullptr);
  CHECK(best->name == "int4");
}

TEST_CASE("Greedy continuations of a row with other weights are the other model's") {
  FakeModel model(257, 2, 1);
  const auto other = std::make_shared<FakeModel>(257, 2, 1);
  for (at::Tensor& weight : other->value_weight) weight = weight.mul(-3);
  const kvq::test::ByteTokenizer tokenizer;
  NamedQuantizer weights;
  weights.name = "w4";
  weights.model = other;
  weights.weights = kSource;
  PasskeyOptions options;
  options.lengths = {700};
  options.depths = {0.5};
  const auto results = evaluate_passkey(model, tokenizer, false, {weights}, options, nullptr, quiet_context());
  const auto alone = evaluate_passkey(*other, tokenizer, false, {}, options, nullptr, quiet_context());
  CHECK(results[1].continuations == alone[0].continuations);
  CHECK(results[1].continuations != results[0].continuations);
  CHECK(results[1].weights == kSource);
  CHECK(results[1].sha256.empty());
}

TEST_CASE("The table has a column for the bits of weights where there are any, and only there") {
  PerplexityReport report;
  report.results.resize(2);
  report.results[0].name = "none";
  report.results[1].name = "w4";
  CHECK(perplexity_table(report).header.size() == 12);
  report.results[1].weights = kSource;
  const Table table = perplexity_table(report);
  REQUIRE(table.header.size() == 13);
  CHECK(table.header[5] == "w bits");
  CHECK(table.rows[0][5] == "–");
  CHECK(table.rows[1][5] == "4.50");
  CHECK(table.rows[1].size() == 13);
}
