#pragma once
// UTF-8 and the few Unicode properties that tokenizers ask for.

#include <cstddef>
#include <string>
#include <string_view>

namespace kvq {

/// Offset of the first byte that is not part of a well-formed character (Unicode 15, table 3-7: no overlong forms, no
/// surrogates, nothing above U+10FFFF), or npos when the text is valid.
std::size_t first_invalid_utf8(std::string_view text);

/// The character that starts at `position` of *valid* UTF-8; moves `position` behind it.
char32_t next_character(std::string_view text, std::size_t& position);
/// The character that ends at `end` > 0 of *valid* UTF-8.
char32_t character_before(std::string_view text, std::size_t end);

/// Every maximal malformed part becomes U+FFFD (Unicode 15, section 3.9, the practice of W3C and Rust).
std::string replace_invalid_utf8(std::string_view text);

/// Normalization form C of valid UTF-8.
std::string to_nfc(std::string_view text);

bool is_white_space(char32_t character);  ///< property White_Space
/// What \w means to Hugging Face's `single_word`: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word_character(char32_t character);

}  // namespace kvq
