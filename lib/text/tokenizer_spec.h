#pragma once
// What a tokenizer file says, independent of its format: read from GGUF or tokenizer.json, run by BpeTokenizer.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kvq/text/added_tokens.h>
#include <kvq/text/bpe.h>
#include <kvq/text/split_pattern.h>

namespace kvq {

/// SentencePiece's stand-in for a blank, U+2581.
inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";

/// Hugging Face's Metaspace pre-tokenizer: blanks become marks, and a mark may be put in front.
struct Metaspace {
  enum class Prepend { Never, First, Always };  ///< First: only at the very start of the text
  Prepend prepend = Prepend::Always;            ///< never a second one before a mark that is there
  bool split = true;                            ///< a word begins at every mark
};

struct TokenizerSpec {
  enum class Symbols {
    Bytes,       ///< byte-level BPE: words are byte strings, tokens are written in the byte alphabet
    Characters,  ///< SentencePiece-style: characters, blanks as kBlankMark, bytes as <0xNN>
  };
  Symbols symbols = Symbols::Bytes;

  std::vector<std::string> tokens;  ///< by id, as written in the file
  std::vector<bool> used;           ///< false: a gap or padding
  std::vector<AddedToken> added;    ///< sorted by id
  /// Ids ≥ tokens.size() name single characters that have no token but occur in merges (SentencePiece merges any two
  /// neighbours whose text is a piece); what is left of them in the end is written as bytes.
  std::vector<std::string> extra_symbols;
  std::vector<Merge> merges;  ///< in rank order

  // Text to words.
  bool nfc = false;
  bool prepend_mark = false;    ///< normalizer: kBlankMark before every stretch of text
  bool replace_blanks = false;  ///< normalizer: ' ' becomes kBlankMark
  std::optional<Metaspace> metaspace;
  std::vector<SplitStage> splits;

  // Words to ids.
  bool ignore_merges = false;  ///< a word that is a token as it stands is not merged
  std::array<std::int32_t, 256>
      byte_ids{};  ///< token of each byte, −1 for none (Characters: all −1 without byte fallback)
  std::optional<std::int32_t> unknown_id;  ///< for what has no token; without one that is left out, as in Hugging Face
  bool fuse_unknown = false;               ///< neighbouring unknowns make one

  bool strip_first_blank = false;  ///< decoding drops the blank that encoding put in front

  std::optional<std::int32_t> bos_id, eos_id;
  bool adds_bos = false;
  std::string chat_template;

  /// Hash of everything that decides ids, in a form that does not depend on the file format (nor on what the formats
  /// say differently about the same tokenizer: padding, the special flag, BOS and EOS, SentencePiece's dummy prefix).
  std::string sha256() const;
};

/// `where` is the file, for messages. Each throws Format.
TokenizerSpec tokenizer_spec_from_gguf(const std::filesystem::path& file);
TokenizerSpec tokenizer_spec_from_hf_folder(const std::filesystem::path& folder);

/// Token text to id. Throws Format for a text that two ids share or that is not UTF-8.
std::unordered_map<std::string, std::int32_t> index_tokens(const TokenizerSpec& spec, const std::string& where);

/// Fills byte_ids from the tokens: of the byte alphabet, or <0xNN>.
void find_byte_tokens(TokenizerSpec& spec, const std::unordered_map<std::string, std::int32_t>& ids);

/// Merges by name, in rank order. Throws Format for a part or a result that is no token.
void add_merges(TokenizerSpec& spec, const std::vector<std::pair<std::string, std::string>>& pairs,
                const std::unordered_map<std::string, std::int32_t>& ids, const std::string& where);
/// "left right" → the pair. Throws Format when there is not exactly one blank between two parts.
std::pair<std::string, std::string> split_merge(const std::string& line, const std::string& where);

}  // namespace kvq
