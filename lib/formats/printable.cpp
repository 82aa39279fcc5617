#include <kvq/formats/printable.h>

#include <algorithm>

#include <fmt/format.h>

namespace kvq {
namespace {

constexpr std::size_t kLongest = 80;

/// Length of the well-formed UTF-8 sequence that begins at `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xc2 && lead < 0xe0 ? 2
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t index = 1; index < length; ++index) {
    if ((byte(index) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and values beyond U+10FFFF show in the second byte.
  if (length == 3 && ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f))) return 0;
  if (length == 4 && ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f))) return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out = "'";
  for (std::size_t at = 0; at < text.size();) {
    if (at >= kLongest) {
      out += "...";
      break;
    }
    const std::size_t length = utf8_length(text.substr(at));
    const auto lead = static_cast<unsigned char>(text[at]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\x{:02x}", lead);
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out + "'";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (const std::int64_t size : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", size);
  return out + "]";
}

}  // namespace kvq
