#include <kvq/text/byte_alphabet.h>

#include <array>

#include <kvq/text/utf8.h>

namespace kvq {

namespace {

// Bytes that print as themselves in Latin-1 stay; the others are numbered from U+0100 upwards.
constexpr bool prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Tables {
  std::array<char32_t, 256> character{};
  std::array<int, 512> byte{};
};

constexpr Tables make_tables() {
  Tables tables;
  for (int& entry : tables.byte) entry = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = prints(byte) ? static_cast<char32_t>(byte) : next++;
    tables.character[static_cast<std::size_t>(byte)] = character;
    tables.byte[character] = byte;
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::optional<std::string> bytes_of_byte_level_token(std::string_view token) {
  std::string bytes;
  for (std::size_t position = 0; position < token.size();) {
    const char32_t character = next_character(token, position);
    if (character >= kTables.byte.size() || kTables.byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kTables.byte[character]);
  }
  return bytes;
}

std::string byte_level_character(unsigned char byte) {
  const char32_t character = kTables.character[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3F))};
}

}  // namespace kvq
