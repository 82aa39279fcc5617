#include "kvq-threshold/options.h"

#include <charconv>
#include <string>

#include <fmt/format.h>

namespace kvq::apps {

namespace {

/// CLI11's own range check would not say why 0.5 is refused.
CLI::Validator fraction_below(double limit, const std::string& what) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value < limit)
          return std::string();
        return fmt::format("'{}' is not {}: a number of at least 0 and below {}, e.g. 0.01 for 1 %", text, what, limit);
      },
      "FRACTION");
}

}  // namespace

void add_options(CLI::App& command, ThresholdArguments& arguments) {
  command.add_option("--calib", arguments.calib, "calibration file made by kvq-fisher")->required();
  command
      .add_option("--outliers", arguments.thresholds.fractions,
                  "fractions of each channel to leave outside, half at each end; comma-separated")
      ->delimiter(',')
      ->check(fraction_below(0.5, "an outlier fraction"))
      ->capture_default_str();
  command
      .add_option("--sinks", arguments.thresholds.sinks,
                  "first tokens of every sequence left out (0 to 16); comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  command
      .add_option("--cap", arguments.thresholds.cap,
                  "measure key outlier rates with at most this fraction of a token exact (0: no cap)")
      ->check(fraction_below(1, "a cap"))
      ->capture_default_str();
  command.add_option("-o,--output", arguments.output, "thresholds file to write")->required();
}

}  // namespace kvq::apps
