#pragma once
// The frame of every tool: parse, run, report errors, exit code. DESIGN §7.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/cli_forward.h"

#include <kvq/core/log.h>

namespace kvq::apps {

/// Options that every tool has.
struct CommonOptions {
  bool quiet = false, json = false, force = false, dry_run = false;
  int verbosity = 0;  ///< -v, -vv
  std::string log_file;
  int threads = 0;  ///< 0: all cores this process may use
};

/// A tool's surroundings once options are parsed: logger and progress on stderr, results on stdout.
class Tool {
 public:
  Tool(std::string name, std::string description);
  ~Tool();
  CLI::App& app();
  const CommonOptions& common() const;

  /// Adds the common options. `--dry-run`, `--json`, `--force` only where the tool honours them.
  struct Features {
    bool json = true, force = true, dry_run = true;
  };
  void add_common(CLI::App& command, Features features);

  /// Parses, sets up logging, threads and signals, calls `work`, maps exceptions to exit codes (0, 1, 2, 130).
  int run(int argc, char** argv, const std::function<void(RunContext&)>& work);

  /// Throws Usage when `output` is one of the files that the command reads. run() checks -o itself; this is for files
  /// within it.
  void check_output(const std::filesystem::path& output) const;

  /// The resolved options as TOML without paths: what artifacts store as `config`. Paths are given by their file name.
  std::string resolved_config() const;

  /// The command as it could be typed again, files by name: for reports.
  std::string command_line() const;
  /// "kvq-eval 0.1.0"
  std::string producer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Results for people or programs; goes to stdout.
void print_result(const std::string& text);

/// "1.4 GB", "350 MB": decimal units.
std::string human_bytes(double bytes);
std::string human_seconds(double seconds);
/// Of a plan: "3.1 GB", or "3.1 GB of the GPU, 2.2 GB of the machine".
std::string human_memory(std::int64_t bytes, std::int64_t device_bytes);

}  // namespace kvq::apps
