#include <kvq/eval/side_by_side.h>

#include <memory>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <c10/core/InferenceMode.h>

#include <kvq/eval/generation.h>
#include <kvq/eval/variant.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace {

/// One cache on its way.
struct Lane {
  Lane(Model& model, AttentionBackend& cache, const std::vector<std::int32_t>& prompt)
      : generation(model, cache, prompt) {}
  Generation generation;
  double kl_sum = 0;
};

double kl_divergence(const at::Tensor& log_p, const at::Tensor& log_q) {
  return log_p.exp().mul(log_p.sub(log_q)).sum().item<double>();
}

/// Puts the token behind the others, or notes that the text has ended.
void take(Continuation& text, Lane& lane, std::int32_t token, const Tokenizer& tokenizer) {
  if (tokenizer.eos_id && token == *tokenizer.eos_id) {
    text.ended = true;
    return;
  }
  text.ids.push_back(token);
  lane.generation.accept(token);
}

}  // namespace

std::vector<Continuation> continue_side_by_side(Model& model, const Tokenizer& tokenizer,
                                                const std::vector<std::int32_t>& prompt,
                                                const std::vector<NamedQuantizer>& quantizers, int new_tokens,
                                                RunContext& context) {
  const c10::InferenceMode no_gradients;
  ExactAttention exact(model.config().kv, model.config().rope);
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Continuation> texts;
  texts.push_back({"none"});
  lanes.push_back(std::make_unique<Lane>(model, exact, prompt));
  for (const NamedQuantizer& row : quantizers) {
    texts.push_back({row.name, row.source.sha256, row.weights});
    caches.push_back(cache_of(row, model.config(), context.threads));
    lanes.push_back(std::make_unique<Lane>(blocks_of(row, model), *caches.back(), prompt));
  }
  context.progress.begin(fmt::format("tokens × {} caches", texts.size()), new_tokens);
  for (std::int64_t step = 0; step < new_tokens; ++step) {
    at::Tensor exact_log;
    std::int32_t exact_token = -1;
    for (std::size_t row = 0; row < texts.size(); ++row) {
      Continuation& text = texts[row];
      if (text.ended) continue;
      const at::Tensor logits = lanes[row]->generation.next_logits(context);
      const std::int32_t token = most_likely(logits);
      if (row == 0) {
        exact_log = at::log_softmax(logits.to(at::kDouble), -1);
        exact_token = token;
      } else if (!text.parts_at) {
        // Both have read the same text: the baseline has not ended before, or this one would have parted there.
        const double kl = kl_divergence(exact_log, at::log_softmax(logits.to(at::kDouble), -1));
        lanes[row]->kl_sum += kl;
        text.kl_mean = lanes[row]->kl_sum / static_cast<double>(step + 1);
        if (token != exact_token) {
          text.parts_at = step;
          text.kl_at_parting = kl;
        }
      }
      take(text, *lanes[row], token, tokenizer);
    }
    context.progress.advance(1);
  }
  context.progress.end();
  for (Continuation& text : texts) text.text = tokenizer.decode(text.ids);
  return texts;
}

std::string marked_text(const Tokenizer& tokenizer, const Continuation& continuation, const std::string& mark) {
  if (!continuation.parts_at) return continuation.text;
  std::string shared = tokenizer.decode({continuation.ids.begin(), continuation.ids.begin() + *continuation.parts_at});
  // A token may end within a character, which then reads U+FFFD.
  while (continuation.text.compare(0, shared.size(), shared) != 0) shared.pop_back();
  return shared + mark + continuation.text.substr(shared.size());
}

}  // namespace kvq
