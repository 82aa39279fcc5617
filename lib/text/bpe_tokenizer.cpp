#include <kvq/text/bpe_tokenizer.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/text/byte_alphabet.h>
#include <kvq/text/utf8.h>

namespace kvq {

namespace {

constexpr std::size_t kLongestCachedWord = 64;  // bytes; longer ones hardly come twice
constexpr std::size_t kMostCachedWords = 1 << 20;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out += text.substr(done, at - done);
    out += to;
  }
  return out += text.substr(done);
}

std::vector<AddedToken> added_where(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> chosen;
  for (const AddedToken& token : spec.added) {
    if (token.normalized == normalized) chosen.push_back(token);
  }
  return chosen;
}

std::string normalize(const TokenizerSpec& spec, std::string_view text) {
  std::string out = spec.nfc ? to_nfc(text) : std::string(text);
  if (spec.prepend_mark && !out.empty()) out.insert(0, kBlankMark);
  if (spec.replace_blanks) out = replace_all(out, " ", kBlankMark);
  return out;
}

std::vector<AddedToken> normalized_tokens(const TokenizerSpec& spec) {
  std::vector<AddedToken> tokens = added_where(spec, true);
  for (AddedToken& token : tokens) token.content = normalize(spec, token.content);
  return tokens;
}

}  // namespace

/// Working memory of one call of encode().
class BpeTokenizer::Run {
 public:
  Run(const BpeTokenizer& tokenizer, std::vector<std::int32_t>& ids)
      : t_(tokenizer), spec_(tokenizer.spec_), ids_(ids), merger_(tokenizer.merges_) {}

  /// Text without added tokens; `at_start`: nothing comes before it.
  void segment(std::string_view text, bool at_start) {
    if (!spec_.metaspace) return stage(text, 0);
    std::string marked = replace_all(text, " ", kBlankMark);
    const Metaspace& metaspace = *spec_.metaspace;
    const bool prepend =
        metaspace.prepend == Metaspace::Prepend::Always || (metaspace.prepend == Metaspace::Prepend::First && at_start);
    if (prepend && !marked.starts_with(kBlankMark)) marked.insert(0, kBlankMark);
    stage(marked, 0);
  }

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  void stage(std::string_view text, std::size_t index) {
    if (index < t_.splits_.size()) {
      return t_.splits_[index].split(text, scratch_, [&](std::string_view piece) { stage(piece, index + 1); });
    }
    const bool every_mark = spec_.metaspace && spec_.metaspace->split;
    if (!every_mark && !t_.cut_at_marks_) return word(text);
    std::size_t begin = 0;
    for (std::size_t at = 1; (at = text.find(kBlankMark, at)) != std::string_view::npos; at += kBlankMark.size()) {
      const bool after_mark = text.substr(0, at).ends_with(kBlankMark);
      if (after_mark && !every_mark) continue;
      word(text.substr(begin, at - begin));
      begin = at;
    }
    word(text.substr(begin));
  }

  void word(std::string_view text) {
    if (text.empty()) return;
    const bool cached = text.size() <= kLongestCachedWord;
    if (cached) {
      if (const auto entry = cache_.find(text); entry != cache_.end()) {
        const auto [first, count] = entry->second;
        ids_.insert(ids_.end(), cached_ids_.begin() + first, cached_ids_.begin() + first + count);
        return;
      }
    }
    const std::size_t before = ids_.size();
    encode_word(text);
    if (cached && cache_.size() < kMostCachedWords) {
      cache_.emplace(text, std::pair(static_cast<std::ptrdiff_t>(cached_ids_.size()),
                                     static_cast<std::ptrdiff_t>(ids_.size() - before)));
      cached_ids_.insert(cached_ids_.end(), ids_.begin() + static_cast<std::ptrdiff_t>(before), ids_.end());
    }
  }

  void encode_word(std::string_view text) {
    if (spec_.ignore_merges) {
      if (const auto entry = t_.whole_words_.find(std::string(text)); entry != t_.whole_words_.end()) {
        ids_.push_back(entry->second);
        return;
      }
    }
    symbols_.clear();
    after_unknown_ = false;
    if (t_.is_bytes()) {
      for (const char c : text) {
        const std::int32_t id = spec_.byte_ids[static_cast<unsigned char>(c)];
        id >= 0 ? add(symbols_, id) : add_unknown(symbols_);
      }
    } else {
      for (std::size_t end = 0; end < text.size();) {
        const std::size_t begin = end;
        const auto entry = t_.character_ids_.find(next_character(text, end));
        entry != t_.character_ids_.end() ? add(symbols_, entry->second)
                                         : add_bytes(symbols_, text.substr(begin, end - begin));
      }
    }
    merger_.merge(symbols_);
    after_unknown_ = false;
    for (const std::int32_t id : symbols_) {
      const bool extra = static_cast<std::size_t>(id) >= spec_.tokens.size();
      extra ? add_bytes(ids_, t_.symbol_text(id)) : add(ids_, id);
    }
  }

  void add(std::vector<std::int32_t>& to, std::int32_t id) {
    to.push_back(id);
    after_unknown_ = false;
  }
  void add_unknown(std::vector<std::int32_t>& to) {
    if (!spec_.unknown_id || (spec_.fuse_unknown && after_unknown_)) return;
    to.push_back(*spec_.unknown_id);
    after_unknown_ = true;
  }
  /// One character without a token: as bytes, if all of them have tokens.
  void add_bytes(std::vector<std::int32_t>& to, std::string_view character) {
    const auto id_of = [&](char c) { return spec_.byte_ids[static_cast<unsigned char>(c)]; };
    if (!std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) return add_unknown(to);
    for (const char c : character) add(to, id_of(c));
  }

  const BpeTokenizer& t_;
  const TokenizerSpec& spec_;
  std::vector<std::int32_t>& ids_;
  BpeMerger merger_;
  SplitPattern::Scratch scratch_;
  std::vector<std::int32_t> symbols_, cached_ids_;
  std::unordered_map<std::string, std::pair<std::ptrdiff_t, std::ptrdiff_t>, TextHash, std::equal_to<>> cache_;
  bool after_unknown_ = false;
};

BpeTokenizer::BpeTokenizer(TokenizerSpec spec)
    : spec_(std::move(spec)),
      raw_finder_(added_where(spec_, false)),
      normalized_finder_(normalized_tokens(spec_)),
      merges_(spec_.merges) {
  for (const SplitStage& stage : spec_.splits) splits_.emplace_back(stage);
  if (spec_.ignore_merges) {
    std::vector<bool> is_added(spec_.tokens.size(), false);
    for (const AddedToken& token : spec_.added) is_added[static_cast<std::size_t>(token.id)] = true;
    for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
      if (!spec_.used[id] || is_added[id]) continue;
      const auto word = is_bytes() ? bytes_of_byte_level_token(spec_.tokens[id]) : spec_.tokens[id];
      if (word) whole_words_.emplace(*word, static_cast<std::int32_t>(id));
    }
  }
  if (!is_bytes()) {
    const std::size_t symbols = spec_.tokens.size() + spec_.extra_symbols.size();
    for (std::size_t id = 0; id < symbols; ++id) {
      const std::string_view text = symbol_text(static_cast<std::int32_t>(id));
      std::size_t end = 0;
      if (text.empty()) continue;
      const char32_t character = next_character(text, end);
      if (end == text.size()) character_ids_.emplace(character, static_cast<std::int32_t>(id));
    }
    cut_at_marks_ = words_begin_at_marks();
  }
  for (std::size_t id = 0; id < spec_.tokens.size(); ++id) texts_.push_back(written(static_cast<std::int32_t>(id)));
  bos_id = spec_.bos_id;
  eos_id = spec_.eos_id;
  adds_bos = spec_.adds_bos;
  chat_template = spec_.chat_template;
  sha256 = spec_.sha256();
}

std::string_view BpeTokenizer::symbol_text(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return index < spec_.tokens.size() ? spec_.tokens[index] : spec_.extra_symbols[index - spec_.tokens.size()];
}

/// True when cutting text before every mark that follows another character changes no id, which makes words short
/// enough to cache: no merge reaches across such a place, and no run of unknowns either, because marks have a token.
bool BpeTokenizer::words_begin_at_marks() const {
  return character_ids_.count(U'\u2581') > 0 &&
         std::none_of(spec_.merges.begin(), spec_.merges.end(), [&](const Merge& merge) {
           return symbol_text(merge.right).starts_with(kBlankMark) && !symbol_text(merge.left).ends_with(kBlankMark);
         });
}

std::string BpeTokenizer::written(std::int32_t id) const {
  const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
  if (is_bytes()) {
    const bool added =
        std::any_of(spec_.added.begin(), spec_.added.end(), [&](const auto& entry) { return entry.id == id; });
    return added ? token : bytes_of_byte_level_token(token).value_or(token);
  }
  const auto byte = std::find(spec_.byte_ids.begin(), spec_.byte_ids.end(), id);
  if (byte != spec_.byte_ids.end()) return std::string(1, static_cast<char>(byte - spec_.byte_ids.begin()));
  return replace_all(token, kBlankMark, " ");
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text, bool parse_special) const {
  if (const std::size_t offset = first_invalid_utf8(text); offset != std::string_view::npos) {
    fail(ErrorKind::Input, fmt::format("text to tokenize is not valid UTF-8 at byte {}", offset));
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  Run run(*this, ids);
  for (const TextPart& part : raw_finder_.split(text, parse_special)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const std::string segment = normalize(spec_, text.substr(part.begin, part.end - part.begin));
    for (const TextPart& inner : normalized_finder_.split(segment, parse_special)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        run.segment(std::string_view(segment).substr(inner.begin, inner.end - inner.begin),
                    part.begin + inner.begin == 0);
      }
    }
  }
  return ids;
}

std::string BpeTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      fail(ErrorKind::Input, fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size()));
    }
    text += texts_[static_cast<std::size_t>(id)];
  }
  if (spec_.strip_first_blank && text.starts_with(' ')) text.erase(0, 1);
  return replace_invalid_utf8(text);
}

}  // namespace kvq
