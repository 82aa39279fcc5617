#include <kvq/text/jinja_source.h>

#include <fmt/format.h>

#include <kvq/text/utf8.h>

namespace kvq {

namespace {

bool is_quote(char c) { return c == '\'' || c == '"'; }

/// True when code comes between, as in `' + content + '`, instead of one piece of text.
bool leaves_literal(std::string_view text) {
  if (text.find_first_of("{}") != std::string_view::npos) return true;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!is_quote(text[at]) || (at > 0 && text[at - 1] == '\\')) continue;
    const std::size_t next = text.find_first_not_of(' ', at + 1);
    if (next != std::string_view::npos && (text[next] == '+' || text[next] == '~')) return true;
  }
  return false;
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size() && (is_quote(text[at + 1]) || text[at + 1] == '\\')) ++at;
    out += text[at];
  }
  return out;
}

}  // namespace

JinjaSource::JinjaSource(std::string_view source) {
  for (std::size_t at = 0; at < source.size(); ++at) {
    const bool line_break = source[at] == '\\' && at + 1 < source.size() && source[at + 1] == 'n';
    text_ += line_break ? '\n' : source[at];
    if (line_break) ++at;
  }
  for (const char c : text_) {
    if (c != ' ') compact_ += c;
  }
}

bool JinjaSource::trims() const {
  for (const char* content : {"content']", "content\"]", "content"}) {
    if (has_compact(std::string(content) + "|trim") || has_compact(std::string(content) + ".strip()")) return true;
  }
  return false;
}

std::optional<std::string> JinjaSource::literal(std::string_view open, std::string_view close) const {
  for (std::size_t at = 0; (at = text_.find(open, at)) != std::string::npos; ++at) {
    const std::size_t begin = at + open.size(), end = text_.find(close, begin);
    if (end == std::string::npos) break;
    const std::string_view inside = std::string_view(text_).substr(begin, end - begin);
    if (!leaves_literal(inside)) return unescaped(inside);
  }
  return std::nullopt;
}

std::string JinjaSource::with_blanks(std::string_view marker) const {
  bool before = false, behind = false;
  for (const char quote : {'\'', '"'}) {
    before = before || has(fmt::format("{} {}", quote, marker));
    behind = behind || has(fmt::format("{} {}", marker, quote));
  }
  return fmt::format("{}{}{}", before ? " " : "", marker, behind ? " " : "");
}

std::optional<std::string> JinjaSource::expression(std::string_view part, std::string_view other) const {
  for (std::size_t at = 0; (at = text_.find("{{", at)) != std::string::npos; at += 2) {
    const std::size_t end = text_.find("}}", at);
    if (end == std::string::npos) break;
    std::string inside = text_.substr(at + 2, end - at - 2);
    if (inside.find(part) == std::string::npos || inside.find(other) == std::string::npos) continue;
    if (inside.starts_with('-')) inside.erase(0, 1);
    if (inside.ends_with('-')) inside.pop_back();
    return stripped(inside);
  }
  return std::nullopt;
}

std::string stripped(std::string_view text) {
  const auto blank = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
  std::size_t begin = 0;
  for (std::size_t next = 0; next < text.size() && blank(next_character(text, next)); begin = next) {
  }
  text.remove_prefix(begin);
  while (!text.empty() && blank(character_before(text, text.size()))) {
    do {
      const bool continuation = (static_cast<unsigned char>(text.back()) & 0xC0u) == 0x80u;
      text.remove_suffix(1);
      if (!continuation) break;
    } while (true);
  }
  return std::string(text);
}

}  // namespace kvq
