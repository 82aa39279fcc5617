#pragma once
// What a command reads and writes, told by the names of its options: checked before anything is opened, so that a slip
// neither hangs a run nor replaces what it reads.

#include <filesystem>
#include <string>
#include <vector>

#include "common/cli_forward.h"

namespace kvq::apps {

struct NamedPath {
  std::string option;  ///< "--calib"
  std::filesystem::path path;
};

/// --model, --text, --calib, --thresholds, --quantizer, --weight-fisher, --recipe and --weights (where a file of that
/// name exists), FILE, REPORTS and --config.
std::vector<NamedPath> input_paths(const CLI::App& app, const CLI::App& command);

/// Throws Usage for an input that is neither a regular file nor a folder (a FIFO would be waited for), or cannot be
/// looked at; missing ones are left to whoever reads them.
void check_inputs(const std::vector<NamedPath>& inputs);

/// Throws Usage when `output` is one of the inputs, or a file in an input folder, by whatever name or link.
void check_output(const std::string& option, const std::filesystem::path& output, const std::vector<NamedPath>& inputs);

/// The same for a log, which is appended to: Usage too when it is an existing file that does not begin like a log.
void check_log_file(const std::filesystem::path& file, const std::vector<NamedPath>& inputs);

}  // namespace kvq::apps
