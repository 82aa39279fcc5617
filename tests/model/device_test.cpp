// The same model on the CPU and on the GPU.
#include <map>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "model_support.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/skip.h"
#include "support/test_model.h"

#include <kvq/core/error.h>
#include <kvq/model/backward.h>
#include <kvq/model/device.h>
#include <kvq/model/loss.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const std::vector<std::string> kModels = {"mha-tied", "gqa-untied", "gqa-bias", "mqa",    "headdim",
                                          "mistral",  "qwen2",      "qwen3",    "gemma3", "gemma3-types"};

std::filesystem::path tiny(const std::string& name) { return kSource / "tests/data/tiny" / name / "hf"; }

/// Longer than a block of queries and a chunk of logits.
std::vector<std::int32_t> some_ids(int count = 700) {
  std::vector<std::int32_t> ids;
  for (int token = 0; token < count; ++token) ids.push_back((token * 37 + token * token) % 320);
  return ids;
}

double window_nll(Model& model, const std::vector<std::int32_t>& ids) {
  const c10::InferenceMode no_gradients;
  return next_token_loss(model, final_hidden(model, ids), ids, false).mean_nll;
}

struct Found {
  double loss = 0;
  std::map<int, LayerGradients> layers;
};

Found gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute) {
  Found found;
  found.loss = sequence_gradients(model, ids, recompute,
                                  [&](const LayerGradients& layer) { found.layers[layer.layer] = layer; });
  return found;
}

void check_gradients(const Found& found, const Found& expected, double forward, double backward) {
  REQUIRE(found.layers.size() == expected.layers.size());
  for (const auto& [index, layer] : expected.layers) {
    INFO("layer " << index);
    const LayerGradients& other = found.layers.at(index);
    CHECK(relative_error(host_floats(other.query), layer.query) <= forward);
    CHECK(relative_error(host_floats(other.key), layer.key) <= forward);
    CHECK(relative_error(host_floats(other.value), layer.value) <= forward);
    CHECK(relative_error(host_floats(other.key_grad), layer.key_grad) <= backward);
    CHECK(relative_error(host_floats(other.value_grad), layer.value_grad) <= backward);
  }
}

void check_fp32(Device device) {
  for (const std::string& name : kModels) {
    INFO(name);
    const auto cpu = load_model(tiny(name), {}), other = load_model(tiny(name), {.device = device});
    CHECK(other->device() == device);
    const std::vector<std::int32_t> ids = some_ids();
    const Found expected = gradients(*cpu, ids, Recompute::None);
    const double nll = window_nll(*cpu, ids);
    by_operations(device, [&] {
      CHECK(window_nll(*other, ids) == Approx(nll).margin(1e-4));
      const Found found = gradients(*other, ids, Recompute::None);
      CHECK(found.loss == Approx(expected.loss).margin(1e-4));
      check_gradients(found, expected, 1e-4, 1e-3);
      CHECK(found.layers.at(0).key.device() == torch_device(device));
      for (const Recompute recompute : {Recompute::None, Recompute::Layer, Recompute::Auto}) {
        const Found again = gradients(*other, ids, recompute);
        CHECK(again.loss == found.loss);
        for (const auto& [index, layer] : found.layers) {
          CHECK(again.layers.at(index).key.equal(layer.key));
          CHECK(again.layers.at(index).key_grad.equal(layer.key_grad));
          CHECK(again.layers.at(index).value_grad.equal(layer.value_grad));
        }
      }
    });
  }
}

void check_bf16(Device device) {
  for (const std::string& name : kModels) {
    INFO(name);
    const auto exact = load_model(tiny(name), {}), cpu = load_model(tiny(name), {.dtype = Dtype::Bf16}),
               other = load_model(tiny(name), {.dtype = Dtype::Bf16, .device = device});
    const std::vector<std::int32_t> ids = some_ids();
    const double nll = window_nll(*exact, ids);
    const Found truth = gradients(*exact, ids, Recompute::None), host = gradients(*cpu, ids, Recompute::None);
    by_operations(device, [&] {
      CHECK(window_nll(*other, ids) == Approx(nll).epsilon(0.02));
      CHECK(window_nll(*other, ids) != nll);
      const Found found = gradients(*other, ids, Recompute::Layer);
      for (const auto& [index, layer] : truth.layers) {
        INFO("layer " << index);
        const double usual = relative_error(host.layers.at(index).key_grad, layer.key_grad);
        CHECK(relative_error(host_floats(found.layers.at(index).key_grad), layer.key_grad) <= 1.5 * usual + 0.01);
      }
    });
  }
}

void check_parts(Device device) {
  const auto cpu = load_model(tiny("gqa-untied"), {}), other = load_model(tiny("gqa-untied"), {.device = device});
  const std::vector<std::int32_t> ids = some_ids(40);
  const auto all = [&](Model& model) {
    Found found;
    sequence_gradients(model, ids, Recompute::Layer,
                       [&](const LayerGradients& layer) { found.layers[layer.layer] = layer; },
                       {.weights = true, .query_heads = true});
    return found;
  };
  const Found expected = all(*cpu), found = by_operations(device, [&] { return all(*other); });
  for (const auto& [index, layer] : expected.layers) {
    const LayerGradients& one = found.layers.at(index);
    CHECK(relative_error(host_floats(one.key_head_grad), layer.key_head_grad) <= 1e-3);
    CHECK(relative_error(host_floats(one.value_head_grad), layer.value_head_grad) <= 1e-3);
    REQUIRE(one.weight_grad.size() == layer.weight_grad.size());
    for (std::size_t matrix = 0; matrix < layer.weight_grad.size(); ++matrix)
      CHECK(relative_error(host_floats(one.weight_grad[matrix]), layer.weight_grad[matrix]) <= 1e-3);
  }
}

void check_streaming(Device device) {
  const auto stay = load_model(tiny("gqa-bias"), {.device = device});
  const auto stream = load_model(tiny("gqa-bias"), {.weight_budget_bytes = 0, .device = device});
  const std::vector<std::int32_t> ids = some_ids(150);
  by_operations(device, [&] {
    CHECK(stay->weight_bytes_to_come() > 0);
    CHECK(window_nll(*stay, ids) == window_nll(*stream, ids));
    CHECK(stay->weight_bytes_to_come() == 0);
    const c10::InferenceMode no_gradients;
    const at::Tensor whole = host_floats(final_hidden(*stay, ids));
    for (const std::size_t step : {1, 7}) {
      ExactAttention attention(stay->config().kv, stay->config().rope);
      CHECK(relative_error(host_floats(final_hidden(*stay, ids, attention, step)), whole) <= 1e-5);
    }
  });
}

}  // namespace

TEST_CASE("A device is known by its name, any other word is refused") {
  CHECK(parse_device("cpu") == Device::Cpu);
  CHECK(parse_device("cuda") == Device::Cuda);
  CHECK(device_name(Device::Cuda) == std::string("cuda"));
  CHECK_THROWS_WITH(parse_device("gpu"), ContainsSubstring("--device 'gpu' is unknown; known: cpu, cuda"));
  open_device(Device::Cpu);
  CHECK(available_memory_bytes(Device::Cpu) > 0);
}

TEST_CASE("The CPU's loops are for its tensors, unless a test says otherwise") {
  const at::Tensor x = at::empty({2, 2}, at::kFloat);
  CHECK(takes_cpu_loops(x));
  {
    const WithoutCpuLoops without;
    CHECK_FALSE(takes_cpu_loops(x));
  }
  CHECK(takes_cpu_loops(x));
}

TEST_CASE("Without a usable GPU asking for one says what is missing") {
  std::string reason;
  try {
    open_device(Device::Cuda);
    KVQ_SKIP("there is a GPU here");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Device);
    reason = error.what();
  }
  CHECK_THAT(reason, ContainsSubstring("--device cuda: "));
  CHECK_THAT(reason, ContainsSubstring("--device cpu"));
  CHECK(reason.find('\n') == std::string::npos);
  CHECK_THROWS_AS(open_device(Device::Cuda), Error);  // every time
}

KVQ_TEST_OF_OPERATIONS("Losses and gradients in fp32 are those of the CPU's loops, the same bits however often",
                       check_fp32)
KVQ_TEST_OF_OPERATIONS("In bf16 gradients stay as close to fp32's as those of the CPU's loops", check_bf16)
KVQ_TEST_OF_OPERATIONS("Parts of query heads and gradients of weights are those of the CPU's loops", check_parts)
KVQ_TEST_OF_OPERATIONS("Weights expanded anew at each use, and tokens one by one, change nothing", check_streaming)

TEST_CASE("Memory of the GPU that is kept for reuse counts as available", "[gpu]") {
  if (const std::string reason = no_cuda_reason(); !reason.empty()) KVQ_SKIP(reason);
  const std::int64_t before = available_memory_bytes(Device::Cuda);
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  CHECK(before > kBytes);
  {
    const at::Tensor some =
        at::empty({kBytes}, at::TensorOptions().dtype(at::kByte).device(torch_device(Device::Cuda)));
    CHECK(before - available_memory_bytes(Device::Cuda) >= kBytes);
  }
  CHECK(before - available_memory_bytes(Device::Cuda) < kBytes / 8);
}

TEST_CASE("SmolLM2 on the GPU: window NLL within 1e-3 of the CPU's, gradients within 1e-3", "[gpu][model]") {
  if (const std::string reason = no_cuda_reason(); !reason.empty()) KVQ_SKIP(reason);
  const auto path = test_model();
  if (!path) KVQ_SKIP("there is no SmolLM2 here");
  std::vector<std::int32_t> ids;
  for (int token = 0; token < 1024; ++token) ids.push_back((token * 37 + token * token) % 49152);
  const auto cpu = load_model(*path, {}), gpu = load_model(*path, {.device = Device::Cuda});
  CHECK(window_nll(*gpu, ids) == Approx(window_nll(*cpu, ids)).margin(1e-3));
  check_gradients(gradients(*gpu, ids, Recompute::Auto), gradients(*cpu, ids, Recompute::Auto), 1e-4, 1e-3);
}
