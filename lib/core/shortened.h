#pragma once
// What was typed, or stands in a file, as a message quotes it.

#include <string>
#include <string_view>

namespace kvq {

/// The text itself up to `most` bytes; of a longer one its beginning and "…". No character of UTF-8 is cut in half.
inline std::string shortened(std::string_view text, std::size_t most = 60) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace kvq
