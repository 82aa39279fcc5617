#pragma once
// Chat markup for the well-known template families, recognised by their markers in the model's Jinja source.

#include <string>
#include <vector>

#include <kvq/text/tokenizer.h>

namespace kvq {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
};

/// The prompt text up to where the assistant begins to write (special tokens written out), the model's default system
/// message included where its template adds one. Families: ChatML, Llama 2, Llama 3, Mistral. Throws Input for others.
std::string render_chat(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages, bool add_generation_prompt);

}  // namespace kvq
