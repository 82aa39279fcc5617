#pragma once
// JSON from a file that nobody here wrote: duplicate keys, deep nesting, trailing bytes and invalid UTF-8 are errors.

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace kvq {

/// Throws Format; `where` (a file, or a part of one) begins the message.
nlohmann::json parse_strict_json(const std::string& where, std::string_view text);

/// The message of a nlohmann::json::exception without the library's own numbers.
std::string json_problem(std::string_view what);

}  // namespace kvq
