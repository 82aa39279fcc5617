// Gradients of the blocks' weights and of every query head's keys and values, against PyTorch's own
// (tests/golden/weights_*.json, scripts/reference/expected_weights.py); and models with other weights.
#include <cmath>
#include <map>

#include <c10/core/GradMode.h>

#include "model_support.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/model/backward.h>
#include <kvq/model/block_weights.h>

using namespace kvq;
using namespace kvq::test;

namespace {

std::filesystem::path gguf_file(const std::string& variant) {
  return kSource / "tests/data/tiny" / variant / "model.gguf";
}
std::filesystem::path hf_folder(const std::string& variant) { return kSource / "tests/data/tiny" / variant / "hf"; }

nlohmann::json golden() { return read_json(kSource / "tests/golden/weights_gqa-bias.json"); }

using Sums = std::map<std::pair<int, BlockMatrix>, at::Tensor>;

Sums sum_of_squares(Model& model, const nlohmann::json& sequences, Recompute recompute) {
  Sums sums;
  for (const auto& ids : sequences) {
    sequence_gradients(model, ids.get<std::vector<std::int32_t>>(), recompute,
                       [&](const LayerGradients& layer) {
                         REQUIRE(layer.weight_grad.size() == kBlockMatrices.size());
                         for (const BlockMatrix matrix : kBlockMatrices) {
                           const at::Tensor square = layer.weight_grad[static_cast<std::size_t>(matrix)].square();
                           at::Tensor& sum = sums[{layer.layer, matrix}];
                           sum = sum.defined() ? sum.add(square) : square;
                         }
                       },
                       {.weights = true});
  }
  return sums;
}

/// The model's own matrices, or those times a factor.
class Scaled final : public BlockWeights {
 public:
  Scaled(const std::filesystem::path& path, float factor) : source_(open_model_source(path)), factor_(factor) {}
  void read(int layer, BlockMatrix matrix, std::span<float> out) override {
    read_block_matrix(source_, layer, matrix, out);
    for (float& value : out) value *= factor_;
  }

 private:
  ModelSource source_;
  float factor_;
};

}  // namespace

TEST_CASE("Squared gradients of weights equal PyTorch's, from folder and from GGUF, however layers are recomputed") {
  KVQ_BOTH_WAYS();
  const nlohmann::json expected = golden();
  for (const auto& path : {hf_folder("gqa-bias"), gguf_file("gqa-bias")}) {
    for (const Recompute recompute : {Recompute::Layer, Recompute::None}) {
      for (const std::int64_t budget : {std::int64_t{-1}, std::int64_t{0}}) {  // weights that stay, and that pass
        const auto model = load_model(path, {.weight_budget_bytes = budget});
        const BlockShape shape = model->config().blocks();
        const Sums sums = sum_of_squares(*model, expected.at("sequences"), recompute);
        REQUIRE(sums.size() == 2 * kBlockMatrices.size());
        for (const auto& [place, sum] : sums) {
          INFO(path.string() << " layer " << place.first << " " << block_matrix_name(place.second));
          auto numbers =
              expected.at("roots").at(place.first).at(block_matrix_name(place.second)).get<std::vector<float>>();
          REQUIRE(static_cast<std::int64_t>(numbers.size()) == shape.elements(place.second));
          const at::Tensor wanted =
              at::from_blob(numbers.data(), {shape.rows(place.second), shape.columns(place.second)}, at::kFloat);
          CHECK(relative_error(sum.sqrt(), wanted) <= 1e-4);
        }
      }
    }
  }
}

TEST_CASE("Asking for gradients of weights changes no other number, and leaves the weights frozen") {
  const auto model = load_model(gguf_file("gqa-bias"), {});
  const auto ids = golden().at("sequences").at(0).get<std::vector<std::int32_t>>();
  std::vector<at::Tensor> plain, with;
  const double loss = sequence_gradients(*model, ids, Recompute::Layer, [&](const LayerGradients& layer) {
    CHECK(layer.weight_grad.empty());
    plain.push_back(layer.key_grad);
  });
  CHECK(sequence_gradients(*model, ids, Recompute::Layer,
                           [&](const LayerGradients& layer) { with.push_back(layer.key_grad); },
                           {.weights = true}) == loss);
  for (std::size_t layer = 0; layer < plain.size(); ++layer) CHECK(plain[layer].equal(with[layer]));
  for (const at::Tensor& weight : model->block_tensors(0)) CHECK_FALSE(weight.requires_grad());
  CHECK(loss == Approx(golden().at("loss").at(0).get<double>()).epsilon(1e-6));
}

TEST_CASE("bf16 gradients of weights stay close to fp32's") {
  KVQ_BOTH_WAYS();
  const nlohmann::json sequences = golden().at("sequences");
  const auto fp32 = load_model(gguf_file("gqa-bias"), {}),
             bf16 = load_model(gguf_file("gqa-bias"), {.dtype = Dtype::Bf16});
  const Sums a = sum_of_squares(*fp32, sequences, Recompute::Layer),
             b = sum_of_squares(*bf16, sequences, Recompute::Layer);
  for (const auto& [place, sum] : a) CHECK(relative_error(b.at(place).sqrt(), sum.sqrt()) <= 0.1);
}

TEST_CASE("Each query head's part of the gradients of keys and values equals PyTorch's, and the parts add up") {
  KVQ_BOTH_WAYS();
  const nlohmann::json expected = golden();
  const auto ids = expected.at("sequences").at(0).get<std::vector<std::int32_t>>();
  for (const auto& path : {hf_folder("gqa-bias"), gguf_file("gqa-bias")}) {
    const auto model = load_model(path, {});
    for (const Recompute recompute : {Recompute::Layer, Recompute::None}) {
      sequence_gradients(
          *model, ids, recompute,
          [&](const LayerGradients& layer) {
            INFO("layer " << layer.layer);
            const std::vector<std::int64_t> shape = {24, 4, 8};
            const auto wanted = [&](const char* side) {
              auto numbers = expected.at("head_grads").at(layer.layer).at(side).get<std::vector<float>>();
              return at::from_blob(numbers.data(), shape, at::kFloat).clone();
            };
            REQUIRE(layer.key_head_grad.sizes() == at::IntArrayRef(shape));
            CHECK(relative_error(layer.key_head_grad, wanted("key")) <= 1e-4);
            CHECK(relative_error(layer.value_head_grad, wanted("value")) <= 1e-4);
            CHECK(relative_error(layer.key_head_grad.view({24, 2, 2, 8}).sum(2), layer.key_grad) <= 1e-5);
            CHECK(relative_error(layer.value_head_grad.view({24, 2, 2, 8}).sum(2), layer.value_grad) <= 1e-5);
          },
          {.query_heads = true});
    }
  }
}

TEST_CASE("Where every query head has its own kv head, its part is the whole gradient") {
  KVQ_BOTH_WAYS();
  const auto model = load_model(gguf_file("mha-tied"), {});
  sequence_gradients(*model, {5, 6, 7, 8, 9}, Recompute::Layer,
                     [](const LayerGradients& layer) { CHECK(layer.key_head_grad.equal(layer.key_grad)); },
                     {.query_heads = true});
}

TEST_CASE("A model with its own matrices given from outside computes the same bits; other matrices, other ones") {
  const at::NoGradGuard no_grad;
  const std::vector<std::int32_t> ids = {7, 8, 9, 100, 7, 8, 9, 101};
  for (const std::string variant : {"gqa-bias", "mha-tied"}) {
    for (const Dtype dtype : {Dtype::Fp32, Dtype::Bf16}) {
      const auto path = gguf_file(variant);
      const auto model = load_model(path, {.dtype = dtype});
      const auto same = load_model_with(path, {.dtype = dtype}, std::make_shared<Scaled>(path, 1.0f), *model);
      const auto passing = load_model_with(path, {.dtype = dtype, .weight_budget_bytes = 0},
                                           std::make_shared<Scaled>(path, 1.0f), *model);
      const auto other = load_model_with(path, {.dtype = dtype}, std::make_shared<Scaled>(path, 0.5f), *model);
      const at::Tensor hidden = final_hidden(*model, ids);
      CHECK(final_hidden(*same, ids).equal(hidden));
      CHECK(final_hidden(*passing, ids).equal(hidden));
      CHECK_FALSE(final_hidden(*other, ids).equal(hidden));
      CHECK(other->logits(hidden).equal(model->logits(hidden)));  // the head is the model's own
      CHECK(same->sha256() == model->sha256());
    }
  }
}
