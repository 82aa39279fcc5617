#pragma once
// What an experiment still has to run: which quantizers and weights are made together, which cells share a pass over a
// text, and the command of each. Looks at the experiment's folder, changes nothing.

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "kvq-eval/experiment_run.h"

namespace kvq::apps {

/// One of our tools and what it is told.
struct ToolCommand {
  std::string tool;
  std::vector<std::string> arguments;  ///< the command's name first, where the tool has several
  std::string text() const;            ///< as a shell takes it, files by name
};

/// Weights of one calibration that are still to be made.
struct WeightsGroup {
  const PlannedCalibration& calibration;
  std::vector<WeightScheme> schemes;
  std::filesystem::path folder;
};

/// Recipes that one thresholds file serves: same sinks, same cap. Fractions are what the recipes need of it.
struct FitGroup {
  std::size_t calibration = 0;
  std::vector<Recipe> recipes;
  std::set<double> fractions;
  int sinks = 0;
  double cap = 0;
  std::filesystem::path thresholds;  ///< empty: none needed
};

/// Cells of one pass: same text, same parts, same weights beside.
struct EvalBatch {
  std::vector<const PlannedCell*> cells;
  std::vector<std::filesystem::path> quantizers, weights;  ///< each once, in order
  std::vector<Recipe> recipes;                             ///< of unquantized caches that evict, each once
  std::filesystem::path folder;                            ///< of the run's own report and journal

  /// Whether one more quantizer would be too many, each of them being run with all weights.
  bool is_full(std::size_t schemes, std::size_t most) const {
    return (quantizers.size() + recipes.size() + 1) * (schemes + 1) > most;
  }
  void add(const PlannedCell& cell);
  /// Whether the cell's cache is one of the pass, or the unquantized one.
  bool has_cache_of(const PlannedCell& cell) const;
};

/// Caches that are asked the same in one run.
struct RetrievalBatch {
  std::vector<const PlannedRetrieval*> caches;
  std::filesystem::path folder;  ///< of the run's own report
};

ToolCommand fisher_command(const ExperimentRun& run, const PlannedCalibration& calibration, bool weights = false);

std::vector<WeightsGroup> weights_groups(const ExperimentRun& run);
ToolCommand weights_command(const ExperimentRun& run, const WeightsGroup& group);

std::vector<FitGroup> fit_groups(const ExperimentRun& run);
ToolCommand threshold_command(const ExperimentRun& run, const FitGroup& group);
ToolCommand fit_command(const ExperimentRun& run, const FitGroup& group);

std::vector<EvalBatch> eval_batches(const ExperimentRun& run);
std::vector<RetrievalBatch> retrieval_batches(const ExperimentRun& run);
ToolCommand retrieval_command(const ExperimentRun& run, const RetrievalBatch& batch);
ToolCommand eval_command(const ExperimentRun& run, const EvalBatch& batch);

}  // namespace kvq::apps
