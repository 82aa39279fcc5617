#pragma once
// Text files as token streams, and windows over them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/core/rng.h>
#include <kvq/text/chat.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

/// `[DOMAIN=]PATH` as given on the command line. A path that exists as written wins over the DOMAIN= reading.
struct TextArgument {
  std::string domain;  ///< file stem when none is given
  std::filesystem::path path;
  static TextArgument parse(const std::string& argument);  ///< throws Usage: empty domain or path
};

/// One line of a JSONL file: either text or a conversation.
struct TextDocument {
  std::string text;
  std::vector<ChatMessage> messages;
};

/// One file's text: UTF-8; a leading BOM is dropped, CRLF kept. A file whose name ends in .jsonl or .ndjson (in
/// any case) is read as JSONL: every line that is not blank is an object with the string `text` or the list `messages`
/// of {role, content}. Throws Input: missing, empty, NUL (with its offset in the file), invalid UTF-8 (with the offset
/// of its first bad byte), bad JSONL line (with its number).
struct TextFile {
  std::string domain;
  std::filesystem::path path;
  /// The whole text. Of JSONL: the documents joined with a blank line, a conversation as its contents joined likewise.
  std::string text;
  std::vector<TextDocument> documents;  ///< JSONL only
  std::string sha256;                   ///< of the file's bytes
};
TextFile read_text(const TextArgument& argument);

enum class BosMode { Auto, Never, Window };
BosMode parse_bos_mode(const std::string& word);  ///< throws Usage

/// A text as the ids of KVQuant's and GPTQ's protocol: tokenised once, as a whole.
struct TokenStream {
  std::string domain;
  std::string name;  ///< path of the file, for messages; empty: a text without one
  std::string text_sha256;
  std::vector<std::int32_t> ids;
};
/// Special tokens written out in the text are recognised, as Hugging Face does. Conversations are written in the
/// model's chat markup when it has a template (an unknown family is an Input error), else as their contents.
TokenStream tokenize(const Tokenizer& tokenizer, const TextFile& file);

/// A window of exactly `seqlen` ids; when the mode puts a BOS token first, it takes the place of one text token.
struct Window {
  int stream = 0;
  std::int64_t first_token = 0;  ///< position in the stream of the first *text* token
  std::vector<std::int32_t> ids;
};

/// Non-overlapping windows from the start of each stream, the tail dropped, ordered by stream and position. max_windows
/// 0 = all; a smaller number is shared evenly among the streams, and is a maximum. Throws Input when no stream holds
/// one window: gives both numbers. (Exactly one window is fine.) Throws Usage for a seqlen below 2, a negative
/// max_windows, or a BOS that the tokenizer does not have.
std::vector<Window> sequential_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                       std::int32_t bos_id, std::int64_t max_windows);

/// `samples` windows, spread evenly over the streams, start positions drawn without replacement from the
/// non-overlapping grid of each stream; ordered by stream and position. Throws Input when the streams hold fewer
/// windows than asked: gives the numbers. Throws Usage as sequential_windows, and for samples below 1.
std::vector<Window> sampled_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                    std::int32_t bos_id, std::int64_t samples, Rng& rng);

}  // namespace kvq
