#pragma once
// A tool's resolved options as text.

#include <string>

#include "common/cli_forward.h"

namespace kvq::apps {

/// Every option of the command with its resolved value as TOML, sorted by name. Paths are reduced to their file name
/// and options that cannot change a result (output, log, progress, force) are left out: the text is stored in
/// artifacts.
std::string settings_as_toml(const CLI::App& command);

/// The command as it could be typed: `program`, the command's name, and every option that was given, on the command
/// line or in a file, that says what to compute and where to put it. Paths are reduced to their file name, as above.
std::string command_as_text(const std::string& program, const CLI::App& command);

/// One word of a command for a POSIX shell, quoted where needed.
std::string shell_word(const std::string& word);
/// The same; of a path ([NAME=]PATH too) the file name only.
std::string shell_word_by_name(const std::string& word);

}  // namespace kvq::apps
