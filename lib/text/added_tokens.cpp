#include <kvq/text/added_tokens.h>

#include <algorithm>

#include <kvq/text/utf8.h>

namespace kvq {

namespace {

bool touches_a_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(character_before(text, begin))) return true;
  return end < text.size() && is_word_character(next_character(text, end));
}

std::size_t blanks_before(std::string_view text, std::size_t begin, std::size_t limit) {
  while (begin > limit) {
    const char32_t character = character_before(text, begin);
    if (!is_white_space(character)) break;
    do {
      --begin;
    } while ((static_cast<unsigned char>(text[begin]) & 0xC0u) == 0x80u);
  }
  return begin;
}

std::size_t blanks_behind(std::string_view text, std::size_t end) {
  for (std::size_t next = end; next < text.size(); end = next) {
    if (!is_white_space(next_character(text, next))) break;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t index = 0; index < tokens_.size(); ++index) {
    int node = 0;
    for (const char c : tokens_[index].content) {
      const auto byte = static_cast<unsigned char>(c);
      int next = child(node, byte);
      if (next < 0) {
        next = static_cast<int>(nodes_.size());
        nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, next);
        nodes_.emplace_back();
      }
      node = next;
    }
    if (node != 0) nodes_[static_cast<std::size_t>(node)].token = static_cast<int>(index);
  }
}

int AddedTokenFinder::child(int node, unsigned char byte) const {
  for (const auto& [label, next] : nodes_[static_cast<std::size_t>(node)].children) {
    if (label == byte) return next;
  }
  return -1;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, std::size_t position) const {
  Match match;
  int node = 0;
  for (std::size_t at = position; at < text.size(); ++at) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    const int token = nodes_[static_cast<std::size_t>(node)].token;
    if (token >= 0) match = {&tokens_[static_cast<std::size_t>(token)], at + 1 - position};
  }
  return match;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text, bool with_special) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;
  for (std::size_t position = 0; position < text.size();) {
    const Match match = longest_at(text, position);
    if (!match.token) {
      ++position;
      continue;
    }
    const AddedToken& token = *match.token;
    std::size_t begin = position, end = position + match.length;
    position = end;  // a match that is passed over still uses up its text
    if (token.special && !with_special) continue;
    if (token.single_word && touches_a_word(text, begin, end)) continue;
    if (token.left_strip) begin = blanks_before(text, begin, done);
    if (token.right_strip) end = blanks_behind(text, end);
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = position = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace kvq
