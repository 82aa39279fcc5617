#pragma once
// Text <-> token ids, identical to the model's own tokenizer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvq {

/// Immutable after loading; thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// No BOS/EOS is added here. Special tokens written out in the text are recognised only when `parse_special`
  /// (Hugging Face's default for plain text is true; chat markup needs it). What has no token (a byte, in a byte-level
  /// vocabulary that lacks it) becomes the unknown token, or nothing where there is none, as in Hugging Face.
  /// Throws Input for text that is not UTF-8.
  virtual std::vector<std::int32_t> encode(std::string_view text, bool parse_special = true) const = 0;
  /// Special tokens are written out; bytes that form no character become U+FFFD. Throws Input for an id outside the
  /// vocabulary.
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  virtual int vocab_size() const = 0;  ///< highest id + 1, padding included

  std::optional<std::int32_t> bos_id, eos_id;
  bool adds_bos = false;      ///< what the tokenizer itself does by default (`--bos auto`)
  std::string chat_template;  ///< the model's Jinja source, empty when there is none
  /// Over kind, tokens in id order, merges/scores and special tokens: equal for the same tokenizer in either format.
  std::string sha256;
};

/// `model` is a GGUF file or a Hugging Face folder (tokenizer.json, with tokenizer_config.json, chat_template.jinja,
/// special_tokens_map.json and config.json where they are there). Byte-level BPE (with the pre-tokenizers of gpt2,
/// smollm, llama3 and qwen2 by name, others by the patterns that a tokenizer.json gives) and SentencePiece-style BPE.
/// Throws Input/Format, naming the unsupported pre-tokenizer or component.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model);

}  // namespace kvq
