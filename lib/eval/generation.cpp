#include <kvq/eval/generation.h>

#include <ATen/ops/argmax.h>

namespace kvq {

std::vector<std::int32_t> greedy_continuation(Model& model, const Tokenizer& tokenizer,
                                              const std::vector<std::int32_t>& prompt, AttentionBackend& cache,
                                              int new_tokens, RunContext& context) {
  std::vector<std::int32_t> generated, input = prompt;
  std::int64_t position = 0;
  cache.set_prompt(static_cast<std::int64_t>(prompt.size()));
  for (int step = 0; step < new_tokens; ++step) {
    at::Tensor hidden = model.embed(input);
    for (int layer = 0; layer < model.config().kv.layers; ++layer) {
      context.cancel.check();
      hidden = model.layer_forward(layer, hidden, position, cache, nullptr);
    }
    position += static_cast<std::int64_t>(input.size());
    const auto last = hidden.size(0) - 1;
    const auto next =
        static_cast<std::int32_t>(at::argmax(model.logits(hidden.narrow(0, last, 1)), -1).item<std::int64_t>());
    if (tokenizer.eos_id && next == *tokenizer.eos_id) break;
    generated.push_back(next);
    input = {next};
  }
  cache.reset();
  return generated;
}

}  // namespace kvq
