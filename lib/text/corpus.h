#pragma once
// Text files as token streams, and windows over them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/core/rng.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

/// `[DOMAIN=]PATH` as given on the command line. A path that exists as written wins over the DOMAIN= reading.
struct TextArgument {
  std::string domain;  ///< file stem when none is given
  std::filesystem::path path;
  static TextArgument parse(const std::string& argument);
};

/// One file's text: UTF-8; a leading BOM is dropped, CRLF kept; JSONL (every line an object with `text` or `messages`)
/// becomes documents joined with a blank line. Throws Input: empty, NUL, invalid UTF-8 (with its offset), bad JSONL line.
struct TextFile {
  std::string domain;
  std::filesystem::path path;
  std::string text;
  std::string sha256;  ///< of the file's bytes
};
TextFile read_text(const TextArgument& argument);

enum class BosMode { Auto, Never, Window };
BosMode parse_bos_mode(const std::string& word);  ///< throws Usage

/// A text as the ids of KVQuant's and GPTQ's protocol: tokenised once, as a whole.
struct TokenStream {
  std::string domain;
  std::string text_sha256;
  std::vector<std::int32_t> ids;
};
TokenStream tokenize(const Tokenizer& tokenizer, const TextFile& file);

/// A window of exactly `seqlen` ids; when the mode puts a BOS token first, it takes the place of one text token.
struct Window {
  int stream = 0;
  std::int64_t first_token = 0;  ///< position in the stream of the first *text* token
  std::vector<std::int32_t> ids;
};

/// Non-overlapping windows from the start of each stream, the tail dropped. max_windows 0 = all.
/// Throws Input when no stream holds one window: gives both numbers. (Exactly one window is fine.)
std::vector<Window> sequential_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                       std::int32_t bos_id, std::int64_t max_windows);

/// `samples` windows, spread evenly over the streams, start positions drawn without replacement from the
/// non-overlapping grid of each stream. Throws Input when the streams hold fewer windows than asked: gives the numbers.
std::vector<Window> sampled_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                    std::int32_t bos_id, std::int64_t samples, Rng& rng);

}  // namespace kvq
