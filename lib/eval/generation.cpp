#include <kvq/eval/generation.h>

#include <utility>

#include <ATen/ops/argmax.h>

namespace kvq {

Generation::Generation(Model& model, AttentionBackend& cache, std::vector<std::int32_t> prompt)
    : model_(model), cache_(cache), input_(std::move(prompt)) {
  cache_.set_prompt(static_cast<std::int64_t>(input_.size()));
}

at::Tensor Generation::next_logits(RunContext& context) {
  at::Tensor hidden = model_.embed(input_);
  for (int layer = 0; layer < model_.config().kv.layers; ++layer) {
    context.cancel.check();
    hidden = model_.layer_forward(layer, hidden, position_, cache_, nullptr);
  }
  position_ += static_cast<std::int64_t>(input_.size());
  return model_.logits(hidden.narrow(0, hidden.size(0) - 1, 1));
}

std::int32_t most_likely(const at::Tensor& logits) {
  return static_cast<std::int32_t>(at::argmax(logits, -1).item<std::int64_t>());
}

std::vector<std::int32_t> greedy_continuation(Model& model, const Tokenizer& tokenizer,
                                              const std::vector<std::int32_t>& prompt, AttentionBackend& cache,
                                              int new_tokens, RunContext& context) {
  std::vector<std::int32_t> generated;
  Generation generation(model, cache, prompt);
  for (int step = 0; step < new_tokens; ++step) {
    const std::int32_t next = most_likely(generation.next_logits(context));
    if (tokenizer.eos_id && next == *tokenizer.eos_id) break;
    generated.push_back(next);
    generation.accept(next);
  }
  return generated;
}

}  // namespace kvq
