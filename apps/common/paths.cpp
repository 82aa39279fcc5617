#include "common/paths.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <kvq/core/error.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

namespace fs = std::filesystem;

namespace {

constexpr const char* kInputs[] = {
    "--model",   "--text", "--calib", "--thresholds",       "--quantizer", "--weight-fisher", "--recipe",
    "--weights", "file",   "reports", "--calibration-text", "--tasks",     "--prompt-file"};

/// One file under two names, or the place for one?
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error, other;
  if (fs::exists(a, error) || fs::exists(b, error)) return fs::equivalent(a, b, error) && !error;
  const fs::path first = fs::weakly_canonical(fs::absolute(a), error),
                 second = fs::weakly_canonical(fs::absolute(b), other);
  return !error && !other && first == second;
}

}  // namespace

std::vector<NamedPath> input_paths(const CLI::App& app, const CLI::App& command) {
  std::vector<NamedPath> paths;
  for (const char* name : kInputs) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (!option) continue;
    for (const std::string& value : option->results()) {
      const fs::path path = std::string(name).ends_with("text") ? TextArgument::parse(value).path : fs::path(value);
      std::error_code error;
      const bool may_be_no_file = std::string(name) == "--recipe" || std::string(name) == "--weights";
      if (may_be_no_file && !fs::exists(path, error)) continue;  // a short form
      paths.push_back({name, path});
    }
  }
  if (const CLI::Option* config = app.get_config_ptr(); config && config->count() > 0)
    paths.push_back({"--config", config->as<std::string>()});
  return paths;
}

void check_inputs(const std::vector<NamedPath>& inputs) {
  for (const NamedPath& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input.path, error);
    if (!fs::exists(status) && (!error || error == std::errc::no_such_file_or_directory ||
                                error == std::errc::not_a_directory || error == std::errc::permission_denied)) {
      continue;  // the reader says so
    }
    if (error) fail(ErrorKind::Usage, fmt::format("{} '{}': {}", input.option, input.path.string(), error.message()));
    if (!fs::is_regular_file(status) && !fs::is_directory(status)) {
      fail(ErrorKind::Usage,
           fmt::format("{} '{}' is not a regular file (a pipe or a device?)", input.option, input.path.string()));
    }
  }
}

void check_output(const std::string& option, const fs::path& output, const std::vector<NamedPath>& inputs) {
  for (const NamedPath& input : inputs) {
    std::error_code error;
    bool same = same_file(output, input.path);
    if (!same && input.option != "-o" && fs::is_directory(input.path, error)) {  // a log may lie in -o's folder
      for (fs::directory_iterator entry(input.path, error), end; !error && entry != end && !same;
           entry.increment(error)) {
        same = same_file(output, entry->path());
      }
    }
    if (same) {
      fail(ErrorKind::Usage,
           fmt::format("{} '{}' is what {} {} ('{}'); another name is needed", option, output.string(), input.option,
                       input.option == "-o" ? "writes" : "reads", input.path.string()));
    }
  }
}

void check_log_file(const fs::path& file, const std::vector<NamedPath>& inputs) {
  check_output("--log-file", file, inputs);
  std::error_code error;
  // It would be made, in silence; other outputs are refused.
  if (const fs::path folder = file.has_parent_path() ? file.parent_path() : "."; !fs::is_directory(folder, error)) {
    fail(ErrorKind::Usage,
         fmt::format("--log-file '{}': {}'{}' {}", file.string(), fs::exists(folder, error) ? "" : "folder ",
                     folder.string(), fs::exists(folder, error) ? "is no folder" : "does not exist"));
  }
  if (fs::is_fifo(file, error)) {  // opening one that nobody reads would wait for ever
    const int descriptor = open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
      fail(ErrorKind::Usage, fmt::format("--log-file '{}' is a pipe that nobody reads", file.string()));
    close(descriptor);
  }
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) == 0) return;
  char begin[5] = {};
  std::ifstream(file, std::ios::binary).read(begin, sizeof begin);
  // Every line of ours begins with a date.
  if (!std::all_of(begin, begin + 4, [](unsigned char c) { return std::isdigit(c) != 0; }) || begin[4] != '-') {
    fail(ErrorKind::Usage, fmt::format("--log-file '{}' exists and is no log; another name is needed", file.string()));
  }
}

}  // namespace kvq::apps
