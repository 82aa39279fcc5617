#include <kvq/text/chat.h>

#include <span>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/printable.h>
#include <kvq/text/jinja_source.h>

namespace kvq {

namespace {

using Messages = std::span<const ChatMessage>;

/// Text of the tokens that templates call bos_token and eos_token.
struct Edges {
  std::string bos, eos;
};

[[noreturn]] void refuse(const std::string& reason) { fail(ErrorKind::Input, "chat template: " + reason); }

bool starts_with_system(Messages messages) { return !messages.empty() && messages[0].role == "system"; }

/// For the families whose template stops at any other order.
void require_turns(Messages messages) {
  if (messages.empty()) refuse("a system message alone is not allowed; a user message must follow");
  for (std::size_t index = 0; index < messages.size(); ++index) {
    const char* expected = index % 2 == 0 ? "user" : "assistant";
    if (messages[index].role != expected) {
      refuse(fmt::format("message {} after the system message has the role {}; user and assistant must take turns",
                         index + 1, printable(messages[index].role)));
    }
  }
}

std::string chatml(const JinjaSource& source, const Edges& edges, Messages messages, bool generate) {
  for (const char* beyond : {"<think>", "enable_thinking", "strftime_now"}) {
    if (source.has(beyond)) refuse(fmt::format("a ChatML template with {} is not supported", beyond));
  }
  if (!source.has_compact("<|im_end|>\n") && !source.has_compact("<|im_end|>'+'\n") &&
      !source.has_compact("<|im_end|>\"+\"\n")) {
    refuse("a ChatML template without a line break after <|im_end|> is not supported");
  }
  std::string text = source.has("bos_token") ? edges.bos : "";
  const auto add = [&](const std::string& role, const std::string& content) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
  };
  const auto system = source.literal("<|im_start|>system\n", "<|im_end|>");
  if (system && !starts_with_system(messages)) add("system", *system);
  for (const ChatMessage& message : messages)
    add(message.role, source.trims() ? stripped(message.content) : message.content);
  if (generate && source.has("<|im_start|>assistant")) text += "<|im_start|>assistant\n";
  return text;
}

std::string llama3(const JinjaSource& source, const Edges& edges, Messages messages, bool generate) {
  std::string text = source.has("bos_token") ? edges.bos : "";
  const auto header = [](const std::string& role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  };
  const auto content = [&](const ChatMessage& message) {
    return source.trims() ? stripped(message.content) : message.content;
  };
  if (source.has("Cutting Knowledge Date")) {
    const auto knowledge = source.literal("Cutting Knowledge Date: ", "\n");
    auto today = source.literal("date_string = \"", "\"");
    if (!today) today = source.literal("date_string = '", "'");
    if (!knowledge || !today) refuse("a Llama 3 template whose dates are not written in it is not supported");
    text += header("system") + "Cutting Knowledge Date: " + *knowledge + "\nToday Date: " + *today + "\n\n";
    if (starts_with_system(messages)) {
      text += content(messages[0]);
      messages = messages.subspan(1);
    }
    text += "<|eot_id|>";
  }
  for (const ChatMessage& message : messages) text += header(message.role) + content(message) + "<|eot_id|>";
  // The first Llama 3 template knew no add_generation_prompt and always ended so.
  if (generate || !source.has("add_generation_prompt")) text += header("assistant");
  return text;
}

std::string llama2(const JinjaSource& source, const Edges& edges, Messages messages) {
  if (source.has_compact("setsystem_message='") || source.has_compact("setsystem_message=\"")) {
    refuse("a Llama 2 template with a default system message is not supported");
  }
  std::string system;
  if (starts_with_system(messages)) {
    system = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n";
    messages = messages.subspan(1);
  }
  require_turns(messages);
  std::string text;
  for (const ChatMessage& message : messages) {
    const bool user = message.role == "user";
    const std::string content = stripped(user ? system + message.content : message.content);
    text += user ? edges.bos + "[INST] " + content + " [/INST]" : " " + content + " " + edges.eos;
    system.clear();
  }
  return text;
}

std::string mistral(const JinjaSource& source, const Edges& edges, Messages messages) {
  if (source.has("[SYSTEM_PROMPT]")) refuse("a Mistral template with [SYSTEM_PROMPT] is not supported");
  const auto answer = source.expression("eos_token", "content");
  if (!answer) refuse("a Mistral template that does not write message content and eos_token together is not supported");
  const bool blank_before = answer->starts_with("' '") || answer->starts_with("\" \"");
  const bool blank_behind = answer->ends_with("' '") || answer->ends_with("\" \"");
  const bool trim = JinjaSource(*answer).trims();

  std::string system;
  if (starts_with_system(messages)) {
    if (!source.has("system_message")) refuse("this Mistral template takes no system message");
    system = messages[0].content + "\n\n";
    messages = messages.subspan(1);
  }
  require_turns(messages);
  const std::size_t system_at = source.has("loop.last and system_message") ? messages.size() - 1 : 0;
  std::string text = edges.bos;
  for (std::size_t index = 0; index < messages.size(); ++index) {
    const std::string& content = messages[index].content;
    if (messages[index].role == "user") {
      text +=
          source.with_blanks("[INST]") + (index == system_at ? system : "") + content + source.with_blanks("[/INST]");
    } else {
      text += (blank_before ? " " : "") + (trim ? stripped(content) : content) + edges.eos + (blank_behind ? " " : "");
    }
  }
  return text;
}

}  // namespace

std::string render_chat(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                        bool add_generation_prompt) {
  if (tokenizer.chat_template.empty())
    refuse("the model has none; give prompts as they are (generate without --chat, --prompt raw elsewhere)");
  if (messages.empty()) refuse("there is no message to write");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      refuse(fmt::format("the role {} is not supported; system, user and assistant are", printable(message.role)));
    }
  }
  const auto text_of = [&](const std::optional<std::int32_t>& id) {
    return id ? tokenizer.decode({*id}) : std::string();
  };
  const Edges edges{text_of(tokenizer.bos_id), text_of(tokenizer.eos_id)};
  const JinjaSource source(tokenizer.chat_template);
  if (source.has("<|im_start|>")) return chatml(source, edges, messages, add_generation_prompt);
  if (source.has("<|start_header_id|>")) return llama3(source, edges, messages, add_generation_prompt);
  if (source.has("<<SYS>>")) return llama2(source, edges, messages);
  if (source.has("[INST]")) return mistral(source, edges, messages);
  refuse("its markers belong to no supported family (ChatML, Llama 2, Llama 3, Mistral)");
}

}  // namespace kvq
