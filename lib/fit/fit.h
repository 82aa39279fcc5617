#pragma once
// kvq-fit's work: codebooks for any number of recipes from calib.h5 and thresholds, one layer in memory at a time.

#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/log.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// `thresholds` may be null when no recipe has outliers or static ranges that need them (fraction 0 needs none: minimum
/// and maximum are taken from the calibration). Throws Usage naming the missing fraction and sinks.
std::vector<Quantizer> fit_quantizers(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
                                      const std::vector<Recipe>& recipes, RunContext& context);

}  // namespace kvq
