#pragma once
// kvq-threshold's work: percentiles per channel from calib.h5, one layer in memory at a time.

#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/log.h>

namespace kvq {

struct ThresholdOptions {
  std::vector<double> fractions;  ///< each in [0, 0.5)
  std::vector<int> sinks;         ///< first tokens of every sequence left out
  double cap = 0.0;
};

ThresholdsFile extract_thresholds(const CalibrationReader& calibration, const ThresholdOptions& options,
                                  RunContext& context);

}  // namespace kvq
