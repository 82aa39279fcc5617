#pragma once
// Names and strings that come from a file, made safe for a message.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvq {

/// In single quotes; control characters and bytes that are not UTF-8 as \xNN; cut after about 80 bytes with "...".
std::string printable(std::string_view text);

/// "[3, 576]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace kvq
