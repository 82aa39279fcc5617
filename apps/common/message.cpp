#include "common/message.h"

#include <fmt/format.h>

namespace kvq::apps {

namespace {

constexpr std::size_t kLongest = 2000;  // bytes

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string printable_message(std::string_view text) {
  std::string cut(text);
  if (cut.size() > kLongest) {
    std::size_t begin = kLongest / 2, end = cut.size() - kLongest / 2;
    while (begin > 0 && continues(cut[begin])) --begin;  // no half characters of UTF-8
    while (end < cut.size() && continues(cut[end])) ++end;
    cut.replace(begin, end - begin, fmt::format(" … ({} bytes left out) … ", end - begin));
  }
  std::string line;
  for (const char byte : cut) {
    const auto code = static_cast<unsigned char>(byte);
    if (byte == '\n') {
      line += "\\n";
    } else if (code < 0x20 || code == 0x7F) {
      line += fmt::format("\\x{:02x}", code);
    } else {
      line += byte;
    }
  }
  return line;
}

}  // namespace kvq::apps
