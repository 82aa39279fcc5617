#pragma once
// Options of kvq-threshold.

#include <filesystem>

#include "common/cli_forward.h"

#include <kvq/fit/thresholds.h>

namespace kvq::apps {

struct ThresholdArguments {
  std::filesystem::path calib, output;
  ThresholdOptions thresholds{{0.01}, {1}, 0.0};
};

void add_options(CLI::App& command, ThresholdArguments& arguments);

}  // namespace kvq::apps
