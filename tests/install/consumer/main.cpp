// The smallest useful program against libkvq: what does the model say next, and what does a token's value vector lose?
//   consumer MODEL RECIPE ID...
#include <cmath>
#include <cstdio>
#include <string>

#include <ATen/ops/argmax.h>
#include <c10/core/InferenceMode.h>

#include <kvq/core/error.h>
#include <kvq/model/model.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>

int main(int argc, char** argv) try {
  const c10::InferenceMode no_gradients;
  std::vector<std::int32_t> ids;
  for (int argument = 3; argument < argc; ++argument) ids.push_back(std::stoi(argv[argument]));

  const auto model = kvq::load_model(argv[1], {});
  kvq::ExactAttention attention(model->config().kv, model->config().rope);
  at::Tensor hidden = model->embed(ids);
  for (int layer = 0; layer < model->config().kv.layers; ++layer) {
    hidden = model->layer_forward(layer, hidden, 0, attention, nullptr);
  }
  const at::Tensor logits = model->logits(hidden.narrow(0, hidden.size(0) - 1, 1));

  const kvq::SideRecipe recipe = kvq::parse_recipe(argv[2]).value;
  const kvq::SideEncoder encoder(
      {.recipe = recipe, .kv_heads = 1, .head_dim = 64, .codebooks = {kvq::uniform_codebook(recipe.bits)}});
  std::vector<float> values, restored(64);
  for (int channel = 0; channel < 64; ++channel) values.push_back(std::cos(0.3f * channel));
  kvq::EncodedTokens encoded;
  encoder.encode(values, encoded);
  encoder.decode(encoded, restored);
  float largest = 0;
  for (int channel = 0; channel < 64; ++channel)
    largest = std::max(largest, std::abs(values[channel] - restored[channel]));
  std::printf("next token %d, largest error %.4f\n", at::argmax(logits).item<int>(), largest);
} catch (const kvq::Error& error) {
  std::fprintf(stderr, "consumer: %s\n", error.what());
  return kvq::exit_code(error.kind());
}
