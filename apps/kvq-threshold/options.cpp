#include "kvq-threshold/options.h"

#include <CLI/CLI.hpp>

#include "common/numbers.h"

namespace kvq::apps {

void add_options(CLI::App& command, ThresholdArguments& arguments) {
  command.add_option("--calib", arguments.calib, "calibration file made by kvq-fisher")->required();
  command
      .add_option("--outliers", arguments.thresholds.fractions,
                  "fractions of each channel to leave outside, half at each end; comma-separated")
      ->delimiter(',')
      ->check(real_number(0, 0.5, "an outlier fraction (0.01 is 1 %)", true))
      ->capture_default_str();
  command
      .add_option("--sinks", arguments.thresholds.sinks,
                  "first tokens of every sequence left out (0 to 16); comma-separated")
      ->delimiter(',')
      ->check(whole_number(0, 16))
      ->capture_default_str();
  command
      .add_option("--cap", arguments.thresholds.cap,
                  "measure key outlier rates with at most this fraction of a token exact (0: no cap)")
      ->check(real_number(0, 1, "a cap, a fraction of a token,", true))
      ->capture_default_str();
  command.add_option("-o,--output", arguments.output, "thresholds file to write (needed unless --dry-run)");
}

}  // namespace kvq::apps
