#pragma once
// The one tokenizer behind every supported file: added tokens, normalizer, pre-tokenizer, byte-pair merges.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kvq/text/tokenizer.h>
#include <kvq/text/tokenizer_spec.h>

namespace kvq {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerSpec spec);

  std::vector<std::int32_t> encode(std::string_view text, bool parse_special) const override;
  std::string decode(const std::vector<std::int32_t>& ids) const override;
  int vocab_size() const override { return static_cast<int>(spec_.tokens.size()); }

 private:
  class Run;
  bool is_bytes() const { return spec_.symbols == TokenizerSpec::Symbols::Bytes; }
  std::string_view symbol_text(std::int32_t id) const;
  bool words_begin_at_marks() const;
  std::string written(std::int32_t id) const;

  TokenizerSpec spec_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  std::vector<SplitPattern> splits_;
  MergeTable merges_;
  std::unordered_map<char32_t, std::int32_t> character_ids_;   ///< Characters only
  std::unordered_map<std::string, std::int32_t> whole_words_;  ///< ignore_merges only; keys as words are encoded
  bool cut_at_marks_ = false;       ///< Characters: no merge crosses from a character to a following mark
  std::vector<std::string> texts_;  ///< what each id decodes to
};

}  // namespace kvq
