#pragma once
// kvq-threshold's work: percentiles per channel from calib.h5, one layer in memory at a time.

#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/log.h>

namespace kvq {

struct ThresholdOptions {
  std::vector<double> fractions;  ///< each in [0, 0.5)
  std::vector<int> sinks;         ///< first tokens of every sequence left out: 0 to 16, below the sequence length
  /// Keys only: share of a token's values that may be exact, in [0, 1); changes the measured capped rates, not the
  /// thresholds. 0: no cap.
  double cap = 0.0;
};

/// For every combination of fraction and sinks, and for keys, rotated keys and values: percentiles f/2 and 1 - f/2 of
/// each channel (numpy 'linear'; for f = 0 minimum and maximum) and measured outlier rates. Fractions descend and sinks
/// ascend in the result, doubles are dropped. Provenance is the calibration's, with the calibration as parent; `config`
/// is left to the caller. Throws Usage for options out of range, and what the reader throws.
ThresholdsFile extract_thresholds(const CalibrationReader& calibration, const ThresholdOptions& options,
                                  RunContext& context);

}  // namespace kvq
