#pragma once
// Retrieval of a 5-digit number hidden in filler text: a grid of lengths × depths, greedy continuation.

#include <cstdint>
#include <string>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/eval/perplexity.h>
#include <kvq/eval/tasks.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

struct PasskeyOptions {
  std::vector<std::int64_t> lengths;  ///< tokens of the whole prompt, at most
  std::vector<double> depths;         ///< in (0, 1)
  int trials = 1;
  bool chat = false;  ///< inside the model's chat template
  std::uint64_t seed = 0;
};

/// Tokens that are generated after each prompt.
int passkey_new_tokens(bool chat);

struct PasskeyCell {
  std::int64_t length = 0, prompt_tokens = 0;
  double depth = 0;
  int found = 0, trials = 0;
};

struct PasskeyResult {
  std::string name;
  std::vector<PasskeyCell> cells;
  std::vector<std::string> continuations;  ///< one per trial, in cell order
  std::string sha256 = {};                 ///< of the quantizer file; empty for the baseline
  WeightsSource weights = {};
  std::string cache = {};  ///< as in VariantResult
};

/// Baseline first. Decoding appends to the same cache token by token. `journal` may be null.
std::vector<PasskeyResult> evaluate_passkey(Model& model, const Tokenizer& tokenizer, bool prepend_bos,
                                            const std::vector<NamedQuantizer>& quantizers,
                                            const PasskeyOptions& options, TaskJournal* journal, RunContext& context);

/// The prompt text with the key at `depth`, as long as fits `length` tokens.
struct PasskeyPrompt {
  std::string text;
  std::string key;
  std::vector<std::int32_t> ids;
};
PasskeyPrompt make_passkey_prompt(const Tokenizer& tokenizer, std::int64_t length, double depth, bool chat,
                                  bool prepend_bos, std::uint64_t seed);

}  // namespace kvq
