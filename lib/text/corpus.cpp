#include <kvq/text/corpus.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/mapped_file.h>
#include <kvq/formats/printable.h>
#include <kvq/formats/strict_json.h>
#include <kvq/text/utf8.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBom = "\xEF\xBB\xBF";
constexpr std::string_view kBetweenDocuments = "\n\n";

[[noreturn]] void refuse(const fs::path& path, const std::string& reason) {
  fail(ErrorKind::Input, fmt::format("{}: {}", path.string(), reason));
}

void join(std::string& text, std::string_view document) {
  if (!text.empty()) text += kBetweenDocuments;
  text += document;
}

std::string plain_text(const TextDocument& document) {
  if (document.messages.empty()) return document.text;
  std::string text;
  for (const ChatMessage& message : document.messages) join(text, message.content);
  return text;
}

std::string string_field(const fs::path& path, std::int64_t line, const nlohmann::json& object, const char* name) {
  if (!object.contains(name) || !object[name].is_string()) {
    refuse(path, fmt::format("line {}: \"{}\" is missing or not a string", line, name));
  }
  auto text = object[name].get<std::string>();
  if (text.find('\0') != std::string::npos)
    refuse(path, fmt::format("line {}: \"{}\" holds a NUL character", line, name));
  return text;
}

TextDocument parse_document(const fs::path& path, std::int64_t line, std::string_view source) {
  nlohmann::json object;
  try {
    object = parse_strict_json(fmt::format("{}: line {}", path.string(), line), source);
  } catch (const Error& error) {
    fail(ErrorKind::Input, error.what());  // to the user it is a text like any other
  }
  if (!object.is_object() || object.contains("text") == object.contains("messages")) {
    refuse(path, fmt::format("line {}: an object with either \"text\" or \"messages\" is needed", line));
  }
  TextDocument document;
  if (object.contains("text")) {
    document.text = string_field(path, line, object, "text");
    return document;
  }
  if (!object["messages"].is_array() || object["messages"].empty()) {
    refuse(path, fmt::format("line {}: \"messages\" is not a list with at least one message", line));
  }
  for (const auto& message : object["messages"]) {
    if (!message.is_object()) refuse(path, fmt::format("line {}: a message is not an object", line));
    document.messages.push_back(
        {string_field(path, line, message, "role"), string_field(path, line, message, "content")});
  }
  return document;
}

std::vector<TextDocument> parse_jsonl(const fs::path& path, std::string_view text) {
  std::vector<TextDocument> documents;
  for (std::int64_t line = 1; !text.empty(); ++line) {
    const std::string_view source = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), source.size() + 1));
    if (source.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    documents.push_back(parse_document(path, line, source));
  }
  return documents;
}

}  // namespace

TextArgument TextArgument::parse(const std::string& argument) {
  if (argument.empty()) fail(ErrorKind::Usage, "--text '': a path is needed, or DOMAIN=PATH");
  std::error_code ignored;
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || fs::exists(argument, ignored)) {
    const fs::path path = argument;
    const std::string stem = path.stem().string();
    return {stem.empty() ? path.string() : stem, path};
  }
  if (equals == 0 || equals + 1 == argument.size()) {
    fail(ErrorKind::Usage,
         fmt::format("--text {}: DOMAIN=PATH needs both parts (and no file has this name)", printable(argument)));
  }
  return {argument.substr(0, equals), argument.substr(equals + 1)};
}

TextFile read_text(const TextArgument& argument) {
  const MappedFile mapped(argument.path);
  const std::string_view content(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  const std::size_t nul = content.find('\0'), bad = first_invalid_utf8(content);
  if (bad != std::string_view::npos && (nul == std::string_view::npos || bad < nul)) {
    const bool utf16 = content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF");
    refuse(argument.path,
           fmt::format("is not valid UTF-8: byte 0x{:02x} at offset {}{}", static_cast<unsigned char>(content[bad]),
                       bad, utf16 ? " (it begins like UTF-16; convert it to UTF-8)" : ""));
  }
  if (nul != std::string_view::npos)
    refuse(argument.path, fmt::format("holds a NUL byte at offset {}; text is needed", nul));

  TextFile file;
  file.domain = argument.domain;
  file.path = argument.path;
  file.sha256 = sha256_of(content);
  const std::string_view text = content.substr(content.starts_with(kBom) ? kBom.size() : 0);
  std::string extension = argument.path.extension().string();
  for (char& letter : extension)
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  if (extension == ".jsonl" || extension == ".ndjson") {
    file.documents = parse_jsonl(argument.path, text);
    for (const TextDocument& document : file.documents) join(file.text, plain_text(document));
  } else {
    file.text = text;
  }
  if (file.text.empty()) refuse(argument.path, "holds no text");
  return file;
}

BosMode parse_bos_mode(const std::string& word) {
  if (word == "auto") return BosMode::Auto;
  if (word == "never") return BosMode::Never;
  if (word == "window") return BosMode::Window;
  fail(ErrorKind::Usage, fmt::format("--bos {}: unknown; auto, never or window", printable(word)));
}

TokenStream tokenize(const Tokenizer& tokenizer, const TextFile& file) {
  TokenStream stream{file.domain, file.path.string(), file.sha256, {}};
  const bool chat = !tokenizer.chat_template.empty() && std::any_of(file.documents.begin(), file.documents.end(),
                                                                    [](const auto& d) { return !d.messages.empty(); });
  if (!chat) {
    stream.ids = tokenizer.encode(file.text);
    return stream;
  }
  std::string text;
  for (const TextDocument& document : file.documents) {
    join(text, document.messages.empty() ? document.text : render_chat(tokenizer, document.messages, false));
  }
  stream.ids = tokenizer.encode(text);
  return stream;
}

}  // namespace kvq
