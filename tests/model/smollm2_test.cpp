// The embedded model against transformers' figures (fp32): shared reference data and tests/golden/smollm2_grads.json.
#include <tuple>

#include <c10/core/GradMode.h>

#include "model_support.h"
#include "support/both_ways.h"
#include "support/catch.h"
#include "support/shared_data.h"
#include "support/skip.h"
#include "support/test_model.h"

#include <kvq/model/backward.h>
#include <kvq/model/loss.h>
#include <kvq/model/threads.h>

using namespace kvq;
using namespace kvq::test;

namespace {

#define KVQ_NEED(variable, expression) \
  const auto variable = expression;    \
  if (!variable) KVQ_SKIP(#expression " is not on this machine")

Model& smollm2() {
  static const auto model = load_model(*test_model(), {});
  return *model;
}

double window_nll(Model& model, const std::vector<std::int32_t>& ids) {
  const at::NoGradGuard no_grad;
  return next_token_loss(model, final_hidden(model, ids), ids, false).mean_nll;
}

}  // namespace

TEST_CASE("SmolLM2: logits of the reference prompts equal transformers'", "[model]") {
  KVQ_NEED(path, test_model());
  KVQ_NEED(reference, shared_data("reference/prompt_logits.json"));
  const at::NoGradGuard no_grad;
  for (const nlohmann::json& prompt : read_json(*reference)) {
    INFO(prompt.at("prompt").get<std::string>());
    const auto ids = prompt.at("ids").get<std::vector<std::int32_t>>();
    const at::Tensor logits = smollm2().logits(final_hidden(smollm2(), ids));
    const at::Tensor last = logits[static_cast<std::int64_t>(ids.size()) - 1];
    for (int rank = 0; rank < 5; ++rank) {
      const auto id = prompt.at("top5_ids").at(rank).get<std::int64_t>();
      CHECK(std::abs(last[id].item<double>() - prompt.at("top5_logits").at(rank).get<double>()) <= 2e-3);
    }
    for (int id = 0; id < 8; ++id) {
      CHECK(std::abs(last[id].item<double>() - prompt.at("first8_logits_lastpos").at(id).get<double>()) <= 2e-3);
    }
    CHECK(logits.abs().mean().item<double>() == Approx(prompt.at("all_abs_mean").get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("SmolLM2: NLL of the first WikiText-2 windows within 5e-4 of transformers'", "[model]") {
  KVQ_NEED(path, test_model());
  KVQ_NEED(reference, shared_data("reference/perplexity_fp32.json"));
  const nlohmann::json expected = read_json(*reference);
  const auto ids = read_json(*shared_data("reference/wikitext2_first4096_ids.json"))
                       .at("first4096")
                       .get<std::vector<std::int32_t>>();
  for (const auto& [name, length, window] :
       std::vector<std::tuple<const char*, int, int>>{{"s2048", 2048, 0}, {"s512", 512, 1}, {"s512", 512, 7}}) {
    INFO(name << ", window " << window);
    const std::vector<std::int32_t> part(ids.begin() + window * length, ids.begin() + (window + 1) * length);
    CHECK(std::abs(window_nll(smollm2(), part) - expected.at(name).at("nll").at(window).get<double>()) <= 5e-4);
  }
}

TEST_CASE("SmolLM2: bf16 window NLL within 0.01 of fp32's", "[model]") {
  KVQ_NEED(path, test_model());
  KVQ_NEED(reference, shared_data("reference/wikitext2_first4096_ids.json"));
  const auto ids = read_json(*reference).at("first4096").get<std::vector<std::int32_t>>();
  const std::vector<std::int32_t> part(ids.begin(), ids.begin() + 512);
  const auto bf16 = load_model(*path, {.dtype = Dtype::Bf16});
  CHECK(std::abs(window_nll(*bf16, part) - window_nll(smollm2(), part)) <= 0.01);
}

TEST_CASE("SmolLM2: gradients of keys and values equal transformers' within 1e-3 per layer", "[model]") {
  KVQ_BOTH_WAYS();
  KVQ_NEED(path, test_model());
  KVQ_NEED(reference, shared_data("reference/wikitext2_first4096_ids.json"));
  const nlohmann::json golden = read_json(kSource / "tests/golden/smollm2_grads.json");
  auto ids = read_json(*reference).at("first4096").get<std::vector<std::int32_t>>();
  ids.resize(golden.at("tokens").get<std::size_t>());
  const double loss = sequence_gradients(smollm2(), ids, Recompute::Layer, [&](const LayerGradients& layer) {
    INFO("layer " << layer.layer);
    const nlohmann::json& expected = golden.at("per_layer").at(layer.layer);
    const auto check = [&](const char* name, const at::Tensor& found) {
      INFO(name);
      const nlohmann::json& side = expected.at(name);
      const double norm = side.at("norm").get<double>();
      CHECK(found.norm().item<double>() == Approx(norm).epsilon(1e-3));
      // The 64 seeded elements stand for the rest: their error, scaled up to the whole tensor.
      const at::Tensor flat = found.reshape({-1});
      const auto indices = side.at("indices").get<std::vector<std::int64_t>>();
      const auto values = side.at("values").get<std::vector<double>>();
      double squares = 0;
      for (std::size_t at = 0; at < indices.size(); ++at) {
        squares += std::pow(flat[indices[at]].item<double>() - values[at], 2);
      }
      const double scale = static_cast<double>(flat.numel()) / static_cast<double>(indices.size());
      CHECK(std::sqrt(squares * scale) / norm <= 1e-3);
    };
    check("key", layer.key);
    check("value", layer.value);
    check("key_grad", layer.key_grad);
    check("value_grad", layer.value_grad);
  });
  CHECK(loss == Approx(golden.at("loss").get<double>()).margin(5e-4));
}
