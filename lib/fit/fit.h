#pragma once
// kvq-fit's work: codebooks for any number of recipes from calib.h5 and thresholds, one layer in memory at a time.

#include <array>
#include <string>
#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/log.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// What kvq-fisher was asked for.
struct CalibrationContents {
  std::string query_heads = "joint";  ///< --query-heads
  bool gradients = true;              ///< false: --forward-only
  bool metrics = false;               ///< --metrics or --forward-only
};

/// Throws Usage for a recipe that needs gradients, their sign, or metrics where a calibration has none.
void check_contents(const Recipe& recipe, const CalibrationContents& contents);

/// How well a recipe fits its calibration data, by side: mean over layers of sum(w (x_hat - decoded)²) / sum(w), with
/// x_hat in [-1, 1] and the recipe's own weights; sinks and outliers, which stay exact, left out. NaN for q4_0, q8_0,
/// fp8 and turbo, which have no x_hat, and where nothing is quantized.
struct FitReport {
  std::array<double, 2> error = {};
};

/// One pass over the file for all recipes. `thresholds` may be null when no recipe has outliers beyond static ranges
/// (fraction 0 needs none: minimum and maximum are taken from the calibration). `reports`, if given, gets one per
/// recipe.
///
/// Layers whose weights are all zero are fitted without weights, and a warning says so. Where nothing is left to fit
/// (all channels constant) the codebook is the uniform one. Throws Usage for recipes that contradict themselves,
/// `none`, and thresholds that are missing (naming fraction and sinks); Mismatch for thresholds of another calibration;
/// what the reader throws.
std::vector<Quantizer> fit_quantizers(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
                                      const std::vector<Recipe>& recipes, RunContext& context,
                                      std::vector<FitReport>* reports = nullptr);

/// The checks of fit_quantizers() alone: before long work, or for a plan.
void check_fit(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
               const std::vector<Recipe>& recipes);

}  // namespace kvq
