#pragma once
// Chat markup for the well-known template families, recognised by their markers in the model's Jinja source.
//
// No Jinja is run. What templates of one family do differently (default system message, blanks around markers,
// trimming, where a system message goes) is read off the source; sources with features beyond that (thinking,
// [SYSTEM_PROMPT]) are refused. Llama 3.1 and later write a date: the fixed one of the template is used, never the
// clock.

#include <string>
#include <vector>

#include <kvq/text/tokenizer.h>

namespace kvq {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
};

/// The prompt text up to where the assistant begins to write (special tokens written out, BOS included where the
/// template writes it), the model's default system message included where its template adds one. Families: ChatML,
/// Llama 2, Llama 3, Mistral. Throws Input: no or unknown template, no message, unknown role, roles in an order that
/// the template does not allow.
std::string render_chat(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                        bool add_generation_prompt);

}  // namespace kvq
