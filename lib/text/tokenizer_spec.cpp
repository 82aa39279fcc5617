#include <kvq/text/tokenizer_spec.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/text/byte_alphabet.h>
#include <kvq/text/utf8.h>

namespace kvq {

std::string TokenizerSpec::sha256() const {
  Sha256 hash;
  const auto add = [&](std::string_view text) {  // with its length, so that neighbours cannot be confused
    hash.update(fmt::format("{}:", text.size()));
    hash.update(text);
  };
  const auto add_number = [&](std::int64_t number) { hash.update(fmt::format("{};", number)); };
  const bool bytes = symbols == Symbols::Bytes;
  add(bytes ? "byte-level BPE" : "SentencePiece BPE");
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!used[id]) continue;
    add_number(static_cast<std::int64_t>(id));
    add(tokens[id]);
  }
  add("added");
  std::vector<bool> is_added(tokens.size(), false);
  for (const AddedToken& token : added) {
    add_number(token.id);
    is_added[static_cast<std::size_t>(token.id)] = true;
  }
  add("merges");
  std::vector<bool> seen(tokens.size() + extra_symbols.size(), false);
  const auto regular = [&](std::int32_t id) { return static_cast<std::size_t>(id) < tokens.size(); };
  for (const Merge& merge : merges) {
    if (bytes) {
      add_number(merge.left);
      add_number(merge.right);
    } else if (const auto result = static_cast<std::size_t>(merge.result);
               regular(merge.left) && regular(merge.right) && !is_added[result] && !seen[result]) {
      seen[result] = true;  // a GGUF has scores of pieces, which order the results; how each is cut in two follows
      add_number(merge.result);
    }
  }
  if (bytes) {
    add(fmt::format("nfc {} ignore_merges {}", nfc, ignore_merges));
    for (const SplitStage& stage : splits) {
      add(stage.pattern);
      add(fmt::format("literal {} keep {}", stage.literal, static_cast<int>(stage.keep)));
    }
  }
  return hash.finish();
}

std::unordered_map<std::string, std::int32_t> index_tokens(const TokenizerSpec& spec, const std::string& where) {
  std::unordered_map<std::string, std::int32_t> ids;
  ids.reserve(spec.tokens.size());
  for (std::size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.used[id]) continue;
    const std::string& token = spec.tokens[id];
    if (first_invalid_utf8(token) != std::string::npos) {
      fail(ErrorKind::Format, fmt::format("{}: token {} is not valid UTF-8", where, id));
    }
    const auto [entry, fresh] = ids.emplace(token, static_cast<std::int32_t>(id));
    if (!fresh) {
      fail(ErrorKind::Format,
           fmt::format("{}: tokens {} and {} have the same text '{}'", where, entry->second, id, token));
    }
  }
  return ids;
}

void find_byte_tokens(TokenizerSpec& spec, const std::unordered_map<std::string, std::int32_t>& ids) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool bytes = spec.symbols == TokenizerSpec::Symbols::Bytes;
    const auto entry =
        ids.find(bytes ? byte_level_character(static_cast<unsigned char>(byte)) : fmt::format("<0x{:02X}>", byte));
    spec.byte_ids[static_cast<std::size_t>(byte)] = entry == ids.end() ? -1 : entry->second;
  }
}

void add_merges(TokenizerSpec& spec, const std::vector<std::pair<std::string, std::string>>& pairs,
                const std::unordered_map<std::string, std::int32_t>& ids, const std::string& where) {
  spec.merges.reserve(pairs.size());
  for (const auto& [left, right] : pairs) {
    const auto id_of = [&](const std::string& text) {
      const auto entry = ids.find(text);
      if (entry == ids.end()) {
        fail(ErrorKind::Format,
             fmt::format("{}: merge {} ('{}' + '{}') needs the token '{}', which the vocabulary lacks", where,
                         spec.merges.size(), left, right, text));
      }
      return entry->second;
    };
    spec.merges.push_back(
        {id_of(left), id_of(right), id_of(left + right), static_cast<std::int32_t>(spec.merges.size())});
  }
}

std::pair<std::string, std::string> split_merge(const std::string& line, const std::string& where) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string::npos || blank == 0 || blank + 1 == line.size() ||
      line.find(' ', blank + 1) != std::string::npos) {
    fail(ErrorKind::Format, fmt::format("{}: merge '{}' is not two parts with one blank between them", where, line));
  }
  return {line.substr(0, blank), line.substr(blank + 1)};
}

}  // namespace kvq
