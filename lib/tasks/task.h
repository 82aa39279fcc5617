#pragma once
// A question about a long context, and how an answer to it is scored.

#include <cstdint>
#include <string>
#include <vector>

#include <kvq/text/tokenizer.h>

namespace kvq {

/// How the generated text is compared with the expected answers; each gives 0 to 1.
enum class Metric {
  Recall,  ///< share of the answers that occur in the text, case aside (RULER)
  Exact,   ///< equal to one of the answers after normalisation (SQuAD)
  F1,      ///< best F1 of words over the answers after normalisation (SQuAD)
  RougeL,  ///< best F-measure of the longest common subsequence of words (ROUGE-L, Lin 2004)
};

/// What a model reads: message and lead, or (chat) the message inside the model's template, which leaves out the lead;
/// BOS first where `prepend_bos` and there is one.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& message, const std::string& lead,
                                     bool chat, bool prepend_bos);

struct Task {
  std::string kind;    ///< what results are averaged over, e.g. "niah-single"
  std::string prompt;  ///< context and question; the user's message in the chat form
  std::string lead;    ///< how an answer begins; ends the prompt in the raw form, left out in the chat form
  std::vector<std::string> answers;
  Metric metric = Metric::Recall;
  int new_tokens = 32;      ///< generated after the prompt
  std::int64_t length = 0;  ///< tokens that the prompt was made for; 0: as long as it came

  std::vector<std::int32_t> ids(const Tokenizer& tokenizer, bool chat, bool prepend_bos) const {
    return prompt_ids(tokenizer, prompt, lead, chat, prepend_bos);
  }
};

/// Drops what lies around the middle of `ids` so that `length` stay: half from the front, half from the end (LongBench,
/// arXiv 2308.14508). Returns whether anything was dropped.
bool cut_middle(std::vector<std::int32_t>& ids, std::int64_t length);

}  // namespace kvq
