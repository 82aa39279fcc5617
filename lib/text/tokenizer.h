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
  /// (Hugging Face's default for plain text is true; chat markup needs it).
  virtual std::vector<std::int32_t> encode(std::string_view text, bool parse_special = true) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  virtual int vocab_size() const = 0;

  std::optional<std::int32_t> bos_id, eos_id;
  bool adds_bos = false;       ///< what the tokenizer itself does by default (`--bos auto`)
  std::string chat_template;   ///< the model's Jinja source, empty when there is none
  /// Over kind, tokens in id order, merges/scores and special tokens: equal for the same tokenizer in either format.
  std::string sha256;
};

/// `model` is a GGUF file or a Hugging Face folder (tokenizer.json). Throws Input/Format, naming the unsupported
/// pre-tokenizer or component.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model);

}  // namespace kvq
