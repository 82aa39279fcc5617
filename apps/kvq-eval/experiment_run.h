#pragma once
// The steps of an experiment: each runs one of our tools on what is not there yet. Killed at any point, the next run
// goes on; within a step the tools' own journals keep what is finished.

#include <filesystem>

#include "kvq-eval/experiment_plan.h"

#include <kvq/core/log.h>
#include <kvq/eval/report.h>

namespace kvq::apps {

struct ExperimentRun {
  const ExperimentConfig& config;
  const ExperimentInputs& inputs;
  const ExperimentPlan& plan;
  std::filesystem::path folder;
  bool quiet = false, discard_calibrations = false;
};

/// The commands that are still to be run, files by name, and how many cells are there already.
struct Remaining {
  std::vector<std::string> commands;
  std::size_t cells = 0, finished_cells = 0;
};
Remaining remaining_steps(const ExperimentRun& run);

/// Runs what is missing and puts all cells into one report. Throws what stopped it: the failed tool has said why.
ReportDocument run_experiment(const ExperimentRun& run, RunContext& context);

}  // namespace kvq::apps
