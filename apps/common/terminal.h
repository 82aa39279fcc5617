#pragma once
// stderr: log lines (spdlog) and the progress display.

#include <memory>
#include <string>

#include "common/tool.h"

namespace kvq::apps {

class Terminal {
 public:
  /// The log file is appended to. Throws Usage when it cannot be opened.
  Terminal(const std::string& tool, const CommonOptions& options);
  ~Terminal();
  Log& log();
  Progress& progress();
  void error(const std::string& message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvq::apps
