#pragma once
// Messages quote what files hold, which may be anything.

#include <string>
#include <string_view>

namespace kvq::apps {

/// On one line, without characters that a terminal would obey, and no longer than a screen: control characters as \n or
/// \x1b, the middle of a long text left out.
std::string printable_message(std::string_view text);

}  // namespace kvq::apps
