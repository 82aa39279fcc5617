// Tiny models of every variant against what transformers computes (tests/golden/tiny_*.json, scripts/reference).
#include <map>

#include <c10/core/GradMode.h>

#include "model_support.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/model/backward.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const std::vector<std::string> kVariants = {"mha-tied", "gqa-untied", "gqa-bias", "mqa",    "headdim",
                                            "mistral",  "qwen2",      "qwen3",    "gemma3", "gemma3-types"};

std::filesystem::path hf_folder(const std::string& variant) { return kSource / "tests/data/tiny" / variant / "hf"; }
std::filesystem::path gguf_file(const std::string& variant) {
  return kSource / "tests/data/tiny" / variant / "model.gguf";
}

struct Gradients {
  double loss = 0;
  std::map<int, LayerGradients> layers;
};

Gradients gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute) {
  Gradients result;
  result.loss = sequence_gradients(model, ids, recompute,
                                   [&](const LayerGradients& layer) { result.layers[layer.layer] = layer; });
  return result;
}

}  // namespace

TEST_CASE("Logits, keys, values and gradients of the tiny models equal transformers', from folder and from GGUF") {
  KVQ_BOTH_WAYS();
  for (const std::string& variant : kVariants) {
    const nlohmann::json golden = read_json(kSource / "tests/golden" / ("tiny_" + variant + ".json"));
    const auto ids = golden.at("ids").get<std::vector<std::int32_t>>();
    for (const auto& path : {hf_folder(variant), gguf_file(variant)}) {
      if (!std::filesystem::exists(path)) continue;  // gemma3-types: a GGUF has no words for it
      INFO(path.string());
      const auto model = load_model(path, {});
      {
        const at::NoGradGuard no_grad;
        const at::Tensor logits = model->logits(final_hidden(*model, ids));
        CHECK(max_abs_difference(logits, tensor_of(golden.at("logits"))) <= 2e-5);
      }
      const Gradients found = gradients(*model, ids, Recompute::Layer);
      CHECK(found.loss == Approx(golden.at("loss").get<double>()).epsilon(1e-6));
      REQUIRE(found.layers.size() == golden.at("per_layer").size());
      for (const auto& [index, layer] : found.layers) {
        INFO("layer " << index);
        const nlohmann::json& expected = golden.at("per_layer").at(index);
        CHECK(relative_error(layer.key, tensor_of(expected.at("key"))) <= 1e-5);
        CHECK(relative_error(layer.value, tensor_of(expected.at("value"))) <= 1e-5);
        CHECK(relative_error(layer.key_grad, tensor_of(expected.at("key_grad"))) <= 1e-4);
        CHECK(relative_error(layer.value_grad, tensor_of(expected.at("value_grad"))) <= 1e-4);
      }
    }
  }
}

TEST_CASE("The same model as GGUF and as folder gives equal keys") {
  for (const std::string& variant : kVariants) {
    INFO(variant);
    if (!std::filesystem::exists(gguf_file(variant))) continue;
    const std::vector<std::int32_t> ids = {5, 300, 17, 44, 45, 46, 319, 0, 1, 2, 250};
    const auto folder = load_model(hf_folder(variant), {});
    const auto file = load_model(gguf_file(variant), {});
    const Gradients a = gradients(*folder, ids, Recompute::None), b = gradients(*file, ids, Recompute::None);
    for (const auto& [index, layer] : a.layers) {
      CHECK(layer.key.equal(b.layers.at(index).key));
      CHECK(layer.value_grad.equal(b.layers.at(index).value_grad));
    }
  }
}

TEST_CASE("Gradients are the same bits however many layers are recomputed") {
  KVQ_BOTH_WAYS();
  const auto model = load_model(hf_folder("gqa-untied"), {});
  const auto ids = read_json(kSource / "tests/golden/tiny_gqa-untied.json").at("ids").get<std::vector<std::int32_t>>();
  const Gradients layer = gradients(*model, ids, Recompute::Layer);
  for (Recompute other : {Recompute::None, Recompute::Auto}) {
    const Gradients found = gradients(*model, ids, other);
    CHECK(found.loss == layer.loss);
    for (const auto& [index, expected] : layer.layers) {
      CHECK(found.layers.at(index).key_grad.equal(expected.key_grad));
      CHECK(found.layers.at(index).value_grad.equal(expected.value_grad));
      CHECK(found.layers.at(index).query.equal(expected.query));
    }
  }
}

TEST_CASE("Layers arrive last to first, each once") {
  const auto model = load_model(hf_folder("gqa-untied"), {});
  std::vector<int> order;
  sequence_gradients(*model, {3, 4, 5}, Recompute::Auto,
                     [&](const LayerGradients& layer) { order.push_back(layer.layer); });
  CHECK(order == std::vector<int>{2, 1, 0});
}

TEST_CASE("A window handed over by 1, 7 or all tokens at once gives the same hidden states") {
  KVQ_BOTH_WAYS();
  const at::NoGradGuard no_grad;
  for (const std::string variant : {"mha-tied", "gqa-bias", "mqa", "qwen3", "gemma3"}) {
    INFO(variant);
    const auto model = load_model(gguf_file(variant), {});
    std::vector<std::int32_t> ids;
    for (int token = 0; token < 150; ++token) ids.push_back((token * 37 + token * token) % 320);
    const at::Tensor whole = final_hidden(*model, ids);
    for (std::size_t step : {1, 7, 140}) {
      ExactAttention attention(model->config().kv, model->config().rope);
      CHECK(relative_error(final_hidden(*model, ids, attention, step), whole) <= 1e-5);
    }
  }
}

TEST_CASE("Weights expanded anew at each use give the same bits as weights that stay") {
  KVQ_BOTH_WAYS();
  const std::vector<std::int32_t> ids = {7, 8, 9, 100, 7, 8, 9, 101};
  for (Dtype dtype : {Dtype::Fp32, Dtype::Bf16}) {
    const auto stay = load_model(gguf_file("mha-tied"), {.dtype = dtype});
    const auto stream = load_model(gguf_file("mha-tied"), {.dtype = dtype, .weight_budget_bytes = 0});
    const Gradients a = gradients(*stay, ids, Recompute::Layer), b = gradients(*stream, ids, Recompute::Layer);
    CHECK(a.loss == b.loss);
    CHECK(a.layers.at(0).key_grad.equal(b.layers.at(0).key_grad));
  }
}

TEST_CASE("bf16 stays close to fp32 in loss and gradients") {
  KVQ_BOTH_WAYS();
  for (const std::string& variant : kVariants) {
    INFO(variant);
    const auto ids =
        read_json(kSource / "tests/golden" / ("tiny_" + variant + ".json")).at("ids").get<std::vector<std::int32_t>>();
    const auto fp32 = load_model(hf_folder(variant), {});
    const auto bf16 = load_model(hf_folder(variant), {.dtype = Dtype::Bf16});
    const Gradients a = gradients(*fp32, ids, Recompute::None), b = gradients(*bf16, ids, Recompute::None);
    CHECK(std::abs(a.loss - b.loss) <= 0.02 * a.loss);
    CHECK(a.loss != b.loss);  // it is another precision
    for (const auto& [index, layer] : a.layers)
      CHECK(relative_error(b.layers.at(index).key_grad, layer.key_grad) <= 0.1);
  }
}

TEST_CASE("An id beyond the vocabulary is refused with its place") {
  const auto model = load_model(gguf_file("mqa"), {});
  CHECK_THROWS_WITH(model->embed({1, 2, 320}),
                    ContainsSubstring("token 2 has id 320") && ContainsSubstring("0 to 319"));
  CHECK_THROWS_WITH(model->embed({-1}), ContainsSubstring("token 0 has id -1"));
}

TEST_CASE("Identity of a model: one hash per content") {
  const auto a = load_model(gguf_file("mqa"), {}), b = load_model(gguf_file("mha-tied"), {}),
             c = load_model(hf_folder("mqa"), {});
  CHECK(a->sha256().size() == 64);
  CHECK(a->sha256() == load_model(gguf_file("mqa"), {.dtype = Dtype::Bf16})->sha256());
  CHECK(a->sha256() != b->sha256());
  CHECK(a->sha256() != c->sha256());
}
