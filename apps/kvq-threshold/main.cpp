// kvq-threshold: per-channel ranges and outlier rates from a calibration file.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tool.h"
#include "kvq-threshold/options.h"
#include "kvq-threshold/report.h"

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/plural.h>

using namespace kvq;

namespace {

void print_plan(const CalibrationHeader& header, const ThresholdOptions& options, bool json) {
  const auto sets = static_cast<std::int64_t>(options.fractions.size() * options.sinks.size());
  const KvShape& shape = header.shape;
  const std::int64_t file_bytes = 48 * sets * shape.layers * shape.width();
  const std::int64_t memory_bytes = 8 * header.total_tokens() * shape.width();
  if (json) {
    apps::print_result(nlohmann::ordered_json({{"layers", shape.layers},
                                               {"channels", shape.width()},
                                               {"tokens", header.total_tokens()},
                                               {"sets", sets},
                                               {"memory_bytes", memory_bytes},
                                               {"file_bytes", file_bytes}})
                           .dump(2));
  } else {
    apps::print_result(fmt::format(
        "{} of {}, {}: {} of thresholds, about {} in memory, {} on disk", plural(shape.layers, "layer"),
        plural(shape.width(), "channel"), plural(header.total_tokens(), "token"), plural(sets, "set"),
        apps::human_bytes(static_cast<double>(memory_bytes)), apps::human_bytes(static_cast<double>(file_bytes))));
  }
}

}  // namespace

int main(int argc, char** argv) {
  apps::Tool tool("kvq-threshold", "Per-channel ranges of keys and values for any list of outlier fractions.");
  apps::ThresholdArguments arguments;
  apps::add_options(tool.app(), arguments);
  tool.add_common(tool.app(), {});
  return tool.run(argc, argv, [&](RunContext& context) {
    if (!arguments.output.empty()) {
      const AtomicFile can_be_written(arguments.output,
                                      tool.common().force);  // checked before the work, written after it
    } else if (!tool.common().dry_run) {
      fail(ErrorKind::Usage, "-o is missing: the thresholds file to write");
    }
    const CalibrationReader calibration(arguments.calib);
    if (tool.common().dry_run) return print_plan(calibration.header(), arguments.thresholds, tool.common().json);
    ThresholdsFile file = extract_thresholds(calibration, arguments.thresholds, context);
    file.provenance.config = tool.resolved_config();
    write_thresholds(arguments.output, file, tool.common().force);
    apps::print_result(tool.common().json ? apps::thresholds_as_json(file)
                                          : apps::thresholds_as_text(file, tool.common().verbosity > 0));
  });
}
