#include <kvq/text/utf8.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

struct Scan {
  std::size_t length;  ///< bytes of the character, or of the malformed part
  bool valid;
};

/// `text` is not empty. Only the second byte has a range that depends on the first.
Scan scan_character(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // shorter forms exist
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;   // shorter forms exist
  if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  for (std::size_t index = 1; index < length; ++index) {
    if (index == text.size() || byte(index) < low || byte(index) > high) return {index, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

/// Length of the ASCII run at the start, in steps of eight bytes (the rest is found byte by byte).
std::size_t ascii_prefix(std::string_view text) {
  std::size_t position = 0;
  for (std::uint64_t word = 0; position + 8 <= text.size(); position += 8) {
    std::memcpy(&word, text.data() + position, 8);
    if (word & 0x8080808080808080u) break;
  }
  return position;
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t position = 0; position < text.size();) {
    position += ascii_prefix(text.substr(position));
    if (position == text.size()) break;
    const Scan scan = scan_character(text.substr(position));
    if (!scan.valid) return position;
    position += scan.length;
  }
  return std::string_view::npos;
}

char32_t next_character(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t index) { return static_cast<char32_t>(static_cast<unsigned char>(text[index])); };
  const char32_t lead = byte(position++);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t character = lead & (0x3Fu >> more);
  for (int count = 0; count < more; ++count) character = (character << 6) | (byte(position++) & 0x3Fu);
  return character;
}

char32_t character_before(std::string_view text, std::size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u);
  return next_character(text, end);
}

std::string replace_invalid_utf8(std::string_view text) {
  if (first_invalid_utf8(text) == std::string_view::npos) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const Scan scan = scan_character(text);
    out += scan.valid ? text.substr(0, scan.length) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(scan.length);
  }
  return out;
}

std::string to_nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) fail(ErrorKind::Input, fmt::format("text cannot be normalized: {}", utf8proc_errmsg(length)));
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length)};
}

bool is_white_space(char32_t character) {
  if (character < 0x80) return character == ' ' || (character >= '\t' && character <= '\r');
  if (character == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_word_character(char32_t character) {
  if (character == 0x200C || character == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace kvq
