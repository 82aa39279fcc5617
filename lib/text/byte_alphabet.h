#pragma once
// The printable stand-ins for the 256 bytes in byte-level BPE vocabularies (Radford et al. 2019, GPT-2's encoder).

#include <optional>
#include <string>
#include <string_view>

namespace kvq {

/// Bytes that a vocabulary entry stands for; nothing when it has a character outside the alphabet.
std::optional<std::string> bytes_of_byte_level_token(std::string_view token);

/// The stand-in of one byte, as UTF-8.
std::string byte_level_character(unsigned char byte);

}  // namespace kvq
