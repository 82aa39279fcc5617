// Evaluations of a model that is computed on a GPU.
#include <memory>
#include <vector>

#include "support/catch.h"
#include "support/fake_model.h"
#include "support/gpu.h"

#include <kvq/core/rng.h>
#include <kvq/eval/generation.h>
#include <kvq/eval/perplexity.h>
#include <kvq/model/rope.h>
#include <kvq/quant/codebook.h>

using namespace kvq;
using namespace kvq::test;

namespace {

std::shared_ptr<const Quantizer> per_token(const ModelConfig& config, const std::string& recipe) {
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
      side.codebooks = {uniform_codebook(side.recipe.bits)};
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

void check_evaluation(Device where) {
  for (const char* name : {"gqa-bias", "gemma3"}) {
    const std::string path = KVQ_SOURCE_DIR "/tests/data/tiny/" + std::string(name) + "/model.gguf";
    Rng rng(3);
    std::vector<Window> windows(2);
    for (Window& window : windows)
      for (int token = 0; token < 400; ++token) window.ids.push_back(static_cast<std::int32_t>(rng.below(320)));
    for (const Dtype dtype : {Dtype::Fp32, Dtype::Bf16}) {
      INFO(name << ", " << dtype_name(dtype));
      const auto judge = [&](Device device) {
        const auto model = load_model(path, {.dtype = dtype, .device = device});
        const std::vector<NamedQuantizer> quantizers = {
            {"int4:key=token", per_token(model->config(), "int4:key=token")},
            {"int3:key=token", per_token(model->config(), "int3:key=token"), CacheKind::Packed}};
        return evaluate_perplexity(*model, windows, quantizers, nullptr, quiet_context());
      };
      const PerplexityReport expected = judge(Device::Cpu), found = by_operations(where, [&] { return judge(where); });
      const bool fp32 = dtype == Dtype::Fp32;
      for (std::size_t row = 0; row < expected.results.size(); ++row) {
        const VariantResult &a = found.results[row], &b = expected.results[row];
        // Behind the unquantized row a value on the border of two codes may take the other one.
        const double margin = !fp32 ? 0.03 : row == 0 ? 1e-3 : 0.02;
        for (std::size_t window = 0; window < 2; ++window)
          CHECK(a.window_nll[window] == Approx(b.window_nll[window]).margin(margin));
        CHECK(a.kl_mean == Approx(b.kl_mean).epsilon(fp32 ? 0.02 : 0.5).margin(1e-6));
        CHECK(a.top1 == Approx(b.top1).margin(fp32 ? 0.01 : 0.1));
        CHECK(a.cache_bytes == b.cache_bytes);
        CHECK(a.seconds > 0);
      }
    }
  }
}

void check_continuation(Device where) {
  const std::string path = KVQ_SOURCE_DIR "/tests/data/tiny/gqa-bias/model.gguf";
  const auto continued = [&](Device device) {
    const auto model = load_model(path, {.device = device});
    ExactAttention cache(model->config().kv, model->config().rope);
    return greedy_continuation(*model, ByteTokenizer(), {1, 2, 3, 5, 8, 13, 21}, cache, 20, quiet_context());
  };
  CHECK(by_operations(where, [&] { return continued(where); }) == continued(Device::Cpu));
}

}  // namespace

KVQ_TEST_OF_OPERATIONS("Windows and quantizers are judged as by the CPU's loops, in both precisions", check_evaluation)
KVQ_TEST_OF_OPERATIONS("A greedy continuation is that of the CPU's loops", check_continuation)
