#include <kvq/eval/passkey.h>

#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/rng.h>
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
                                            const PasskeyOptions& options, TaskJournal* journal, RunContext& context) {
  const std::size_t depths = options.depths.size();
  std::vector<Task> tasks;  // `trials` of them for every cell
  for (std::size_t length = 0; length < options.lengths.size(); ++length) {
    for (std::size_t depth = 0; depth < depths; ++depth) {
      for (int trial = 0; trial < options.trials; ++trial) {
        // Every cell and trial has its own key, the same for all caches.
        const std::uint64_t seed = options.seed * 1000003 + (length * depths + depth) * 1009 + trial;
        const PasskeyPrompt prompt = make_passkey_prompt(tokenizer, options.lengths[length], options.depths[depth],
                                                         options.chat, prepend_bos, seed);
        tasks.push_back({"passkey",
                         prompt.text,
                         "",
                         {prompt.key},
                         Metric::Recall,
                         passkey_new_tokens(options.chat),
                         options.lengths[length]});
      }
    }
  }
  const TaskReport report =
      evaluate_tasks(model, tokenizer, prepend_bos, quantizers, tasks, {options.chat, 0}, journal, context);
  std::vector<PasskeyResult> results;
  for (const TaskResult& row : report.results) {
    PasskeyResult& result = results.emplace_back();
    result.name = row.name;
    result.sha256 = row.sha256;
    result.weights = row.weights;
    result.cache = row.cache;
    for (std::size_t task = 0; task < tasks.size(); ++task) {
      const std::size_t cell = task / static_cast<std::size_t>(options.trials);
      if (cell == result.cells.size())
        result.cells.push_back({tasks[task].length, 0, options.depths[cell % depths], 0, options.trials});
      result.cells[cell].prompt_tokens = report.prompts[task].prompt_tokens;
      result.cells[cell].found += row.answers[task].score == 1.0;
      result.continuations.push_back(row.answers[task].text);
    }
  }
  return results;
}

}  // namespace kvq
