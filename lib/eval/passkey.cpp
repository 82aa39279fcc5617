#include <kvq/eval/passkey.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <c10/core/InferenceMode.h>

#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/eval/generation.h>
#include <kvq/eval/variant.h>
#include <kvq/model/rope.h>
#include <kvq/tasks/task.h>

namespace kvq {

namespace {

// The prompt of the long-context literature (Mohtashami & Jaggi, arXiv 2305.16300).
constexpr const char* kTask =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about "
    "the important information there.";
constexpr const char* kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
constexpr const char* kQuestion = "What is the pass key? The pass key is";

std::string passkey_text(std::int64_t fillers, double depth, const std::string& key) {
  const auto before = static_cast<std::int64_t>(std::llround(depth * static_cast<double>(fillers)));
  std::string text = std::string(kTask) + "\n";
  for (std::int64_t filler = 0; filler < fillers; ++filler) {
    if (filler == before) text += fmt::format("\nThe pass key is {}. Remember it. {} is the pass key.\n", key, key);
    text += kFiller;
  }
  if (before >= fillers) text += fmt::format("\nThe pass key is {}. Remember it. {} is the pass key.\n", key, key);
  return text + "\n" + kQuestion;
}

}  // namespace

int passkey_new_tokens(bool chat) { return chat ? 24 : 8; }

PasskeyPrompt make_passkey_prompt(const Tokenizer& tokenizer, std::int64_t length, double depth, bool chat,
                                  bool prepend_bos, std::uint64_t seed) {
  Rng rng(seed);
  PasskeyPrompt prompt;
  prompt.key = std::to_string(10000 + rng.below(90000));
  auto build = [&](std::int64_t fillers) {
    prompt.text = passkey_text(fillers, depth, prompt.key);
    prompt.ids = prompt_ids(tokenizer, prompt.text, "", chat, prepend_bos);
    return static_cast<std::int64_t>(prompt.ids.size()) <= length;
  };
  if (!build(1)) {
    fail(ErrorKind::Usage,
         fmt::format("--lengths {}: the shortest passkey prompt has {} tokens", length, prompt.ids.size()));
  }
  // Every filler adds the same number of tokens but for the seams, so a bisection ends at the longest prompt that fits.
  std::int64_t fits = 1, too_long = length;
  while (too_long - fits > 1) {
    const std::int64_t middle = (fits + too_long) / 2;
    (build(middle) ? fits : too_long) = middle;
  }
  build(fits);
  return prompt;
}

std::vector<PasskeyResult> evaluate_passkey(Model& model, const Tokenizer& tokenizer, bool prepend_bos,
                                            const std::vector<NamedQuantizer>& quantizers,
                                            const PasskeyOptions& options, RunContext& context) {
  const c10::InferenceMode no_gradients;
  ExactAttention exact(model.config().kv, model.config().rope);
  std::vector<PasskeyResult> results(quantizers.size() + 1);
  results[0].name = "none";
  std::vector<std::unique_ptr<KvCache>> caches;
  for (std::size_t index = 0; index < quantizers.size(); ++index) {
    results[index + 1].name = quantizers[index].name;
    results[index + 1].sha256 = quantizers[index].source.sha256;
    results[index + 1].weights = quantizers[index].weights;
    results[index + 1].cache = cache_name(quantizers[index]);
    caches.push_back(cache_of(quantizers[index], model.config(), context.threads));
  }
  const int new_tokens = passkey_new_tokens(options.chat);
  const auto cells = static_cast<std::int64_t>(options.lengths.size() * options.depths.size());
  context.progress.begin("passkey prompts", cells * options.trials * static_cast<std::int64_t>(results.size()));
  for (std::size_t length = 0; length < options.lengths.size(); ++length) {
    for (std::size_t depth = 0; depth < options.depths.size(); ++depth) {
      for (PasskeyResult& result : results) {
        result.cells.push_back({options.lengths[length], 0, options.depths[depth], 0, options.trials});
      }
      for (int trial = 0; trial < options.trials; ++trial) {
        // Every cell and trial has its own key, the same for all caches.
        const std::uint64_t seed = options.seed * 1000003 + (length * options.depths.size() + depth) * 1009 + trial;
        const PasskeyPrompt prompt = make_passkey_prompt(tokenizer, options.lengths[length], options.depths[depth],
                                                         options.chat, prepend_bos, seed);
        for (std::size_t variant = 0; variant < results.size(); ++variant) {
          AttentionBackend& cache = variant == 0 ? static_cast<AttentionBackend&>(exact) : *caches[variant - 1];
          Model& blocks = variant == 0 ? model : blocks_of(quantizers[variant - 1], model);
          const std::string text =
              tokenizer.decode(greedy_continuation(blocks, tokenizer, prompt.ids, cache, new_tokens, context));
          PasskeyCell& cell = results[variant].cells.back();
          cell.prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
          cell.found += text.find(prompt.key) != std::string::npos;
          results[variant].continuations.push_back(text);
          context.progress.advance(1);
        }
      }
    }
  }
  context.progress.end();
  return results;
}

}  // namespace kvq
