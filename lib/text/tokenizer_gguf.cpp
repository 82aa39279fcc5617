// The tokenizer.ggml.* fields of a GGUF file (gguf.md of the ggml project; meaning of names as in llama.cpp's
// llama-vocab).

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/gguf.h>
#include <kvq/formats/printable.h>
#include <kvq/text/tokenizer_spec.h>
#include <kvq/text/utf8.h>

namespace kvq {

namespace {

enum TokenType : std::int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

/// What a name in tokenizer.ggml.pre stands for.
struct PreTokenizer {
  std::vector<SplitStage> splits;
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;  ///< unless the file says
};

const std::map<std::string, PreTokenizer>& pre_tokenizers() {
  static const std::map<std::string, PreTokenizer> known = [] {
    const PreTokenizer gpt2{{{kGpt2Pattern}}};
    const PreTokenizer smollm{{{R"(\p{N})"}, {kGpt2Pattern}}};
    const PreTokenizer llama3{{{kLlama3Pattern}}, false, true, true};
    // A GGUF cannot say that Qwen2 composes its text; the name implies it.
    const PreTokenizer qwen2{{{kQwen2Pattern}}, true};
    return std::map<std::string, PreTokenizer>{{"gpt-2", gpt2},       {"gpt2", gpt2},     {"smollm", smollm},
                                               {"llama-bpe", llama3}, {"llama3", llama3}, {"llama-v3", llama3},
                                               {"qwen2", qwen2}};
  }();
  return known;
}

class GgufReader {
 public:
  explicit GgufReader(const std::filesystem::path& path) : file_(path), where_(path.string()) {}

  TokenizerSpec read() {
    const std::string model = file_.require_string("tokenizer.ggml.model");
    if (model != "gpt2" && model != "llama") {
      damaged(
          fmt::format("tokenizer.ggml.model {} is not supported; supported are 'gpt2' (byte-level BPE) and 'llama' "
                      "(SentencePiece BPE)",
                      printable(model)));
    }
    read_tokens();
    if (model == "llama" && !adds_space_prefix()) blanks_to_marks();
    ids_ = index_tokens(spec_, where_);
    model == "gpt2" ? read_byte_level() : read_sentencepiece();
    read_added();
    read_special_ids();
    spec_.chat_template = file_.find_string("tokenizer.chat_template").value_or("");
    return std::move(spec_);
  }

 private:
  [[noreturn]] void damaged(const std::string& reason) const {
    fail(ErrorKind::Format, fmt::format("{}: {}", where_, reason));
  }

  void require_length(const char* key, std::size_t length) const {
    if (length != spec_.tokens.size()) {
      damaged(fmt::format("{} has {} entries; tokenizer.ggml.tokens has {}", key, length, spec_.tokens.size()));
    }
  }

  void read_tokens() {
    const auto* tokens = file_.find_strings("tokenizer.ggml.tokens");
    if (!tokens || tokens->empty()) damaged("tokenizer.ggml.tokens (a list of strings) is missing or empty");
    spec_.tokens = *tokens;
    types_.assign(tokens->size(), kNormal);
    if (const auto* types = file_.find_ints("tokenizer.ggml.token_type")) {
      require_length("tokenizer.ggml.token_type", types->size());
      types_ = *types;
    }
    for (std::size_t id = 0; id < types_.size(); ++id) {
      if (types_[id] < kNormal || types_[id] > kByte) {
        damaged(fmt::format("tokenizer.ggml.token_type of token {} is {}; 1 to 6 are allowed", id, types_[id]));
      }
      spec_.used.push_back(types_[id] != kUnused);
    }
  }

  bool adds_space_prefix() const { return file_.find_bool("tokenizer.ggml.add_space_prefix").value_or(true); }

  /// llama.cpp's converter writes blanks in user-defined tokens where SentencePiece and tokenizer.json have its mark.
  void blanks_to_marks() {
    for (std::size_t id = 0; id < types_.size(); ++id) {
      std::string& token = spec_.tokens[id];
      for (std::size_t at = 0; types_[id] == kUserDefined && (at = token.find(' ', at)) != std::string::npos;)
        token.replace(at, 1, kBlankMark);
    }
  }

  void read_byte_level() {
    const std::string pre = file_.find_string("tokenizer.ggml.pre").value_or("");
    const auto entry = pre_tokenizers().find(pre);
    if (entry == pre_tokenizers().end()) {
      std::string known;
      for (const auto& [name, unused] : pre_tokenizers()) known += (known.empty() ? "" : ", ") + name;
      damaged(fmt::format("tokenizer.ggml.pre {}; supported pre-tokenizers: {}",
                          pre.empty() ? "is missing" : printable(pre) + " is not supported", known));
    }
    spec_.symbols = TokenizerSpec::Symbols::Bytes;
    spec_.splits = entry->second.splits;
    spec_.nfc = entry->second.nfc;
    spec_.ignore_merges = entry->second.ignore_merges;
    spec_.adds_bos = entry->second.adds_bos;
    find_byte_tokens(spec_, ids_);
    const auto* lines = file_.find_strings("tokenizer.ggml.merges");
    if (!lines) damaged("tokenizer.ggml.merges (a list of strings) is missing");
    std::vector<std::pair<std::string, std::string>> pairs;
    pairs.reserve(lines->size());
    for (const std::string& line : *lines) pairs.push_back(split_merge(line, where_));
    add_merges(spec_, pairs, ids_, where_);
  }

  void read_sentencepiece() {
    if (file_.metadata("tokenizer.ggml.precompiled_charsmap")) {
      damaged("tokenizer.ggml.precompiled_charsmap (a SentencePiece normalization table) is not supported");
    }
    if (file_.find_bool("tokenizer.ggml.remove_extra_whitespaces").value_or(false)) {
      damaged("tokenizer.ggml.remove_extra_whitespaces = true is not supported");
    }
    spec_.symbols = TokenizerSpec::Symbols::Characters;
    spec_.replace_blanks = true;
    spec_.prepend_mark = adds_space_prefix();
    spec_.strip_first_blank = spec_.prepend_mark;
    spec_.adds_bos = true;
    find_byte_tokens(spec_, ids_);
    const std::int64_t unknown = file_.find_int("tokenizer.ggml.unknown_token_id").value_or(-1);
    if (unknown >= 0) spec_.unknown_id = checked_id("tokenizer.ggml.unknown_token_id", unknown);
    spec_.fuse_unknown = true;
    merges_from_scores();
  }

  /// SentencePiece merges the neighbours whose joined text is the piece of highest score, whatever they are: every way
  /// to cut a piece in two is a merge with the rank of that piece.
  void merges_from_scores() {
    const auto* scores = file_.find_doubles("tokenizer.ggml.scores");
    if (!scores) damaged("tokenizer.ggml.scores (a list of numbers) is missing");
    require_length("tokenizer.ggml.scores", scores->size());
    std::vector<std::int32_t> order;
    for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
      if (!std::isfinite((*scores)[id])) damaged(fmt::format("tokenizer.ggml.scores of token {} is not a number", id));
      if (types_[id] == kNormal) order.push_back(static_cast<std::int32_t>(id));
    }
    const auto score = [&](std::int32_t id) { return (*scores)[static_cast<std::size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return score(a) > score(b); });
    std::int32_t rank = 0;
    for (std::size_t index = 0; index < order.size(); ++index) {
      if (index > 0 && score(order[index]) < score(order[index - 1])) ++rank;
      const std::string& piece = spec_.tokens[static_cast<std::size_t>(order[index])];
      for (std::size_t cut = 0; cut < piece.size();) {
        next_character(piece, cut);
        if (cut == piece.size()) break;
        const std::int32_t left = symbol(piece.substr(0, cut)), right = symbol(piece.substr(cut));
        if (left >= 0 && right >= 0) spec_.merges.push_back({left, right, order[index], rank});
      }
    }
  }

  /// Id of a piece that can stand in a word: a normal token, or any single character.
  std::int32_t symbol(const std::string& text) {
    if (const auto entry = ids_.find(text);
        entry != ids_.end() && types_[static_cast<std::size_t>(entry->second)] == kNormal) {
      return entry->second;
    }
    std::size_t end = 0;
    next_character(text, end);
    if (end != text.size()) return -1;
    const auto [entry, fresh] =
        extra_ids_.emplace(text, static_cast<std::int32_t>(spec_.tokens.size() + spec_.extra_symbols.size()));
    if (fresh) spec_.extra_symbols.push_back(text);
    return entry->second;
  }

  void read_added() {
    for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
      const bool special = types_[id] == kControl || types_[id] == kUnknown;
      if (!special && types_[id] != kUserDefined) continue;
      const bool holds_blank =
          spec_.symbols == TokenizerSpec::Symbols::Characters && spec_.tokens[id].find(kBlankMark) != std::string::npos;
      if (holds_blank && spec_.prepend_mark) {
        damaged(
            fmt::format("token {} {} is user-defined and holds a blank, which is not supported together with a "
                        "blank before every text (tokenizer.ggml.add_space_prefix)",
                        id, printable(spec_.tokens[id])));
      }
      AddedToken token;
      token.normalized = holds_blank;  // looked for where blanks are marks
      token.id = static_cast<std::int32_t>(id);
      token.content = spec_.tokens[id];
      token.special = special;
      spec_.added.push_back(token);
    }
  }

  std::int32_t checked_id(const char* key, std::int64_t id) const {
    if (id < 0 || id >= static_cast<std::int64_t>(spec_.tokens.size())) {
      damaged(fmt::format("{} is {}; the vocabulary has {} tokens", key, id, spec_.tokens.size()));
    }
    return static_cast<std::int32_t>(id);
  }

  void read_special_ids() {
    if (const auto id = file_.find_int("tokenizer.ggml.bos_token_id")) {
      spec_.bos_id = checked_id("tokenizer.ggml.bos_token_id", *id);
    }
    if (const auto id = file_.find_int("tokenizer.ggml.eos_token_id")) {
      spec_.eos_id = checked_id("tokenizer.ggml.eos_token_id", *id);
    }
    spec_.adds_bos = file_.find_bool("tokenizer.ggml.add_bos_token").value_or(spec_.adds_bos);
    if (spec_.adds_bos && !spec_.bos_id) {
      damaged("tokenizer.ggml.bos_token_id is missing, although the tokenizer puts that token first");
    }
  }

  GgufFile file_;
  std::string where_;
  TokenizerSpec spec_;
  std::vector<std::int64_t> types_;
  std::unordered_map<std::string, std::int32_t> ids_, extra_ids_;
};

}  // namespace

TokenizerSpec tokenizer_spec_from_gguf(const std::filesystem::path& file) { return GgufReader(file).read(); }

}  // namespace kvq
