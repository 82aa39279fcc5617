#pragma once
// A tool's resolved options as text.

#include <string>

#include "common/cli_forward.h"

namespace kvq::apps {

/// Every option of the command with its resolved value as TOML, sorted by name. Paths are reduced to their file name
/// and options that cannot change a result (output, log, progress, force) are left out: the text is stored in
/// artifacts.
std::string settings_as_toml(const CLI::App& command);

}  // namespace kvq::apps
