#pragma once
// What an experiment consists of, and where each piece lies in its folder. Every piece is named by a hash of all that
// it depends on, so a piece that is there is the piece that is needed: editing one cell leaves the others' results in
// use.
//
//   calibrations/KEY.h5        kvq-fisher        model, texts, samples, seed
//   quantizers/KEY/SLUG.h5     kvq-fit           the calibration and the recipe
//   calibrations/KEY-weights.h5, weights/KEY/SLUG.h5     the same for quantized weights
//   cells/KEY.json             kvq-eval          the quantizer, the weights, the judged text or the questions, windows,
//   parts, kind of cache

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvq-eval/experiment_config.h"

namespace kvq::apps {

struct LabelledText {
  std::string label;
  std::filesystem::path path;
  std::string sha256;
};

/// What does not come from the configuration.
struct ExperimentInputs {
  std::filesystem::path model;
  std::string model_sha256, dtype, bos, device, cache;
  std::vector<LabelledText> calibration_texts, texts;
  bool samples_given = false;  ///< --samples has taken the place of those of the calibrations
};

struct PlannedCalibration {
  CalibrationConfig config;
  std::vector<LabelledText> texts;
  std::string key;
};

struct PlannedCell {
  Recipe recipe;  ///< unquantized: it evicts, or the weights are alone
  std::optional<WeightScheme> weights;
  std::vector<WeightScheme> beside;       ///< what the cell's table has: pairs with these are judged in the same pass
  std::size_t calibration = 0, text = 0;  ///< index in the plan's calibrations, in the inputs' texts
  std::string only_layers, only_side;
  std::filesystem::path quantizer, weights_file, result;  ///< empty: none
};

/// One cache and what it is asked.
struct PlannedRetrieval {
  std::size_t question = 0;  ///< index in the configuration's retrievals
  Recipe recipe;
  std::size_t calibration = 0;
  std::filesystem::path quantizer, result;  ///< quantizer empty: none
};

struct ExperimentPlan {
  std::vector<PlannedCalibration> calibrations;
  std::vector<PlannedCell> cells;  ///< in the order of the configuration, each once
  std::vector<PlannedRetrieval> retrievals;
};

/// Throws Usage for a label that no text has, and for two calibrations that are the same.
ExperimentPlan plan_experiment(const ExperimentConfig& config, const ExperimentInputs& inputs,
                               const std::filesystem::path& folder);

/// The command that asks, its name first, without model, caches and output.
std::vector<std::string> retrieval_arguments(const RetrievalConfig& config);

std::filesystem::path calibration_file(const std::filesystem::path& folder, const PlannedCalibration& calibration);
std::filesystem::path weight_fisher_file(const std::filesystem::path& folder, const PlannedCalibration& calibration);

}  // namespace kvq::apps
