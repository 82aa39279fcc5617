// Chat markup against transformers' apply_chat_template (tests/golden/chat.json, made by
// scripts/reference/make_chat.py).

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/skip.h"
#include "support/test_model.h"

#include <kvq/core/error.h>
#include <kvq/text/chat.h>

using namespace kvq;
using namespace kvq::test;

namespace {

/// Knows nothing but its two special tokens.
class EdgeTokenizer final : public Tokenizer {
 public:
  EdgeTokenizer(std::string bos, std::string eos) : texts_{std::move(bos), std::move(eos)} {
    bos_id = 0;
    eos_id = 1;
  }
  std::vector<std::int32_t> encode(std::string_view, bool) const override { return {}; }
  std::string decode(const std::vector<std::int32_t>& ids) const override {
    return texts_.at(static_cast<std::size_t>(ids.at(0)));
  }
  int vocab_size() const override { return 2; }

 private:
  std::vector<std::string> texts_;
};

nlohmann::json golden() { return nlohmann::json::parse(std::ifstream(KVQ_SOURCE_DIR "/tests/golden/chat.json")); }

std::vector<ChatMessage> messages_of(const nlohmann::json& list) {
  std::vector<ChatMessage> messages;
  for (const auto& entry : list)
    messages.push_back({entry["role"].get<std::string>(), entry["content"].get<std::string>()});
  return messages;
}

std::string refusal(const std::string& chat_template, const std::vector<ChatMessage>& messages) {
  EdgeTokenizer tokenizer("<s>", "</s>");
  tokenizer.chat_template = chat_template;
  try {
    render_chat(tokenizer, messages, true);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Input);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Conversations are written as transformers writes them, family by family") {
  const nlohmann::json fixture = golden();
  EdgeTokenizer tokenizer(fixture["bos"].get<std::string>(), fixture["eos"].get<std::string>());
  REQUIRE(fixture["cases"].size() == 176);
  int refused = 0;
  for (const auto& entry : fixture["cases"]) {
    CAPTURE(entry["family"], entry["messages"], entry["generate"]);
    tokenizer.chat_template = entry["template"].get<std::string>();
    const auto messages = messages_of(entry["messages"]);
    const bool generate = entry["generate"].get<bool>();
    if (entry["text"].is_null()) {
      CHECK_THROWS_AS(render_chat(tokenizer, messages, generate), Error);
      ++refused;
    } else if (entry["text"].get<std::string>().find(messages.back().content.substr(0, 1)) == std::string::npos) {
      // Llama 2 and Mistral write nothing of a lone system message; a prompt without a question is refused instead.
      CHECK_THROWS_AS(render_chat(tokenizer, messages, generate), Error);
    } else {
      CHECK(render_chat(tokenizer, messages, generate) == entry["text"].get<std::string>());
    }
  }
  CHECK(refused > 10);
}

TEST_CASE("The real model's template is the one of the golden cases", "[model]") {
  const auto model = test_model();
  if (!model) KVQ_SKIP("the model is not there; set KVQ_TEST_MODEL");
  const auto tokenizer = load_tokenizer(*model);
  const nlohmann::json fixture = golden();
  int checked = 0;
  for (const auto& entry : fixture["cases"]) {
    if (entry["family"] != "smollm2") continue;
    CHECK(tokenizer->chat_template == entry["template"].get<std::string>());
    CHECK(render_chat(*tokenizer, messages_of(entry["messages"]), entry["generate"].get<bool>()) ==
          entry["text"].get<std::string>());
    ++checked;
  }
  CHECK(checked == 16);
  // Markers become one token each.
  const auto ids = tokenizer->encode(render_chat(*tokenizer, {{"user", "Hi"}}, true));
  CHECK(std::count(ids.begin(), ids.end(), 1) == 3);
  CHECK(std::count(ids.begin(), ids.end(), 2) == 2);
}

TEST_CASE("Chat templates that cannot be followed are refused with the reason") {
  const std::string chatml =
      "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}";
  CHECK(refusal(chatml, {{"user", "Hi"}}) == "accepted");
  CHECK_THAT(refusal("", {{"user", "Hi"}}), ContainsSubstring("the model has none"));
  CHECK_THAT(refusal("{{ messages }}", {{"user", "Hi"}}), ContainsSubstring("no supported family"));
  CHECK_THAT(refusal(chatml, {}), ContainsSubstring("no message"));
  CHECK_THAT(refusal(chatml, {{"tool", "Hi"}}), ContainsSubstring("role 'tool'"));
  CHECK_THAT(refusal(chatml + "<think>", {{"user", "Hi"}}), ContainsSubstring("<think>"));
  CHECK_THAT(refusal("<|im_start|>{{ message['content'] }}<|im_end|>", {{"user", "Hi"}}),
             ContainsSubstring("line break"));
  CHECK_THAT(refusal("[SYSTEM_PROMPT] [INST]", {{"user", "Hi"}}), ContainsSubstring("[SYSTEM_PROMPT]"));
  CHECK_THAT(refusal("<<SYS>> {% set system_message = 'You are' %}", {{"user", "Hi"}}),
             ContainsSubstring("default system message"));
}
