#include "kvq-eval/experiment_run.h"

#include <fstream>
#include <set>

#include <fmt/format.h>

#include "common/child_process.h"
#include "kvq-eval/experiment_kept.h"
#include "kvq-eval/experiment_steps.h"

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/eval/report_reader.h>

namespace kvq::apps {

namespace {

namespace fs = std::filesystem;

void run_tool(const ExperimentRun& run, const ToolCommand& command, RunContext& context) {
  context.cancel.check();
  context.log.info(command.text());
  std::vector<std::string> arguments = command.arguments;
  arguments.insert(arguments.end(), {"--threads", std::to_string(context.threads)});
  if (run.quiet) arguments.emplace_back("--quiet");
  const int code = run_child(sibling_tool(command.tool), arguments, context.cancel);
  if (code == 0) return;
  context.cancel.check();
  const ErrorKind kind = code == 2 ? ErrorKind::Usage : code == 130 ? ErrorKind::Interrupted : ErrorKind::Io;
  fail(kind, fmt::format("the experiment stopped: exit code {} of {}", code, command.text()));
}

fs::path commands_file(const fs::path& quantizer) { return fs::path(quantizer).replace_extension(".commands"); }

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void make_quantizers(const ExperimentRun& run, RunContext& context) {
  for (const FitGroup& group : fit_groups(run)) {
    const PlannedCalibration& calibration = run.plan.calibrations[group.calibration];
    std::string commands = fisher_command(run, calibration).text() + "\n";
    if (!fs::exists(calibration_file(run.folder, calibration)))
      run_tool(run, fisher_command(run, calibration), context);
    if (!group.thresholds.empty()) {
      if (!fs::exists(group.thresholds)) run_tool(run, threshold_command(run, group), context);
      commands += threshold_command(run, group).text() + "\n";
    }
    fs::create_directories(run.folder / "quantizers" / calibration.key);
    run_tool(run, fit_command(run, group), context);
    commands += fit_command(run, group).text() + "\n";
    for (const Recipe& recipe : group.recipes) {
      write_file_atomically(commands_file(run.folder / "quantizers" / calibration.key / (slug(recipe) + ".h5")),
                            commands, true);
    }
  }
}

void make_weights(const ExperimentRun& run, RunContext& context) {
  for (const WeightsGroup& group : weights_groups(run)) {
    const ToolCommand fisher = fisher_command(run, group.calibration, true), fit = weights_command(run, group);
    if (!fs::exists(weight_fisher_file(run.folder, group.calibration))) run_tool(run, fisher, context);
    fs::create_directories(group.folder);
    run_tool(run, fit, context);
    for (const WeightScheme& scheme : group.schemes)
      write_file_atomically(commands_file(group.folder / (slug(scheme) + ".h5")),
                            fisher.text() + "\n" + fit.text() + "\n", true);
  }
}

/// One file per cell, so that each can be used by itself.
void split(const ExperimentRun& run, const EvalBatch& batch) {
  const ReportDocument report = read_kept(batch.folder / "report.json");
  const Evaluation& evaluation = report.evaluations.front();
  for (const PlannedCell* cell : batch.cells) {
    const std::string sha256 = cache_sha256(cell->quantizer, cell->recipe).value(),
                      weights = cell->weights_file.empty() ? "" : sha256_of_file(cell->weights_file);
    ReportDocument part;
    part.evaluations.push_back(evaluation);
    std::erase_if(part.evaluations.front().report.results, [&](const VariantResult& row) {
      return row.name != "none" && (row.source.sha256 != sha256 || row.weights.sha256 != weights);
    });
    KVQ_ASSERT(part.evaluations.front().report.results.size() > 1);
    for (VariantResult& row : part.evaluations.front().report.results) {
      if (row.name == "none") continue;
      // Beside others of its recipe in one pass it was named after its file, too.
      const std::string which = row.parts.all() ? "" : row.name.substr(row.name.rfind(" ["));
      row.name = row_name(*cell) + which;
      if (cell->weights) row.weights.name = short_form(*cell->weights);
    }
    for (const fs::path& file : {cell->quantizer, cell->weights_file}) {
      if (file.empty()) continue;
      const std::vector<std::string> lines = lines_of(commands_file(file));
      part.commands.insert(part.commands.end(), lines.begin(), lines.end());
    }
    part.commands.push_back(eval_command(run, batch).text());
    write_file_atomically(cell->result, document_json(part), true);
  }
  fs::remove_all(batch.folder);
}

/// The rows of one cache, and of the unquantized one. Rows are `PasskeyResult` or `TaskResult`.
template <typename Row>
void keep_rows(std::vector<Row>& rows, const PlannedRetrieval& planned) {
  const std::string sha256 = cache_sha256(planned.quantizer, planned.recipe).value();
  std::erase_if(rows, [&](const Row& row) { return row.name != "none" && row.sha256 != sha256; });
  KVQ_ASSERT(rows.size() == 2);
  rows.back().name = short_form(planned.recipe);
}

void split(const RetrievalBatch& batch) {
  const ReportDocument report = read_kept(batch.folder / "report.json");
  for (const PlannedRetrieval* planned : batch.caches) {
    ReportDocument part;
    part.passkey = report.passkey;
    part.tasks = report.tasks;
    if (part.passkey) keep_rows(part.passkey->results, *planned);
    if (part.tasks) keep_rows(part.tasks->report.results, *planned);
    write_file_atomically(planned->result, document_json(part), true);
  }
  fs::remove_all(batch.folder);
}

/// Names that tell cells apart in one table: with the calibration, where there are several.
void label(const ExperimentRun& run, const PlannedCell& cell, ReportDocument& part) {
  Evaluation& evaluation = part.evaluations.front();
  if (run.inputs.texts.size() > 1) evaluation.subject.text = run.inputs.texts[cell.text].label;
  if (run.plan.calibrations.size() < 2) return;
  const std::string& name = run.plan.calibrations[cell.calibration].config.name;
  for (VariantResult& row : evaluation.report.results) {
    if (row.name == "none") continue;
    row.source.calibration = name;
    const auto end = std::min({row.name.find(" ["), row.name.find(" + "), row.name.size()});
    row.name.insert(end, fmt::format(" ({})", name));
  }
}

void label(const ExperimentRun& run, const PlannedRetrieval& planned, ReportDocument& part) {
  if (run.plan.calibrations.size() < 2) return;
  const std::string behind = fmt::format(" ({})", run.plan.calibrations[planned.calibration].config.name);
  if (part.passkey) part.passkey->results.back().name += behind;
  if (part.tasks) part.tasks->report.results.back().name += behind;
}

}  // namespace

Remaining remaining_steps(const ExperimentRun& run) {
  Remaining remaining;
  remaining.cells = run.plan.cells.size() + run.plan.retrievals.size();
  for (const PlannedCell& cell : run.plan.cells) remaining.finished_cells += fs::exists(cell.result) ? 1 : 0;
  for (const PlannedRetrieval& planned : run.plan.retrievals)
    remaining.finished_cells += fs::exists(planned.result) ? 1 : 0;
  std::set<fs::path> planned;
  const auto add = [&](const fs::path& output, const ToolCommand& command) {
    if (!fs::exists(output) && planned.insert(output).second) remaining.commands.push_back(command.text());
  };
  for (const FitGroup& group : fit_groups(run)) {
    const PlannedCalibration& calibration = run.plan.calibrations[group.calibration];
    add(calibration_file(run.folder, calibration), fisher_command(run, calibration));
    if (!group.thresholds.empty()) add(group.thresholds, threshold_command(run, group));
    remaining.commands.push_back(fit_command(run, group).text());
  }
  for (const WeightsGroup& group : weights_groups(run)) {
    add(weight_fisher_file(run.folder, group.calibration), fisher_command(run, group.calibration, true));
    remaining.commands.push_back(weights_command(run, group).text());
  }
  for (const EvalBatch& batch : eval_batches(run)) remaining.commands.push_back(eval_command(run, batch).text());
  for (const RetrievalBatch& batch : retrieval_batches(run))
    remaining.commands.push_back(retrieval_command(run, batch).text());
  return remaining;
}

namespace {

/// The parts of an experiment's folder. Those that stay empty go away again.
class Folders {
 public:
  explicit Folders(const fs::path& experiment) : experiment_(experiment) {
    for (const char* name : kNames) fs::create_directories(experiment_ / name);
  }
  ~Folders() {
    std::error_code ignored;
    for (const char* name : kNames) fs::remove(experiment_ / name, ignored);  // removes empty folders only
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;

 private:
  static constexpr const char* kNames[] = {"calibrations", "thresholds", "quantizers", "weights", "cells", "runs"};
  fs::path experiment_;
};

}  // namespace

ReportDocument run_experiment(const ExperimentRun& run, RunContext& context) {
  const Folders folders(run.folder);
  make_quantizers(run, context);
  make_weights(run, context);
  for (const PlannedCalibration& calibration : run.plan.calibrations) {
    if (!run.discard_calibrations) break;
    fs::remove(calibration_file(run.folder, calibration));
    fs::remove(weight_fisher_file(run.folder, calibration));
  }
  for (const EvalBatch& batch : eval_batches(run)) {
    // A report without its cells: the last run was stopped between the two.
    if (!fs::exists(batch.folder / "report.json")) run_tool(run, eval_command(run, batch), context);
    split(run, batch);
  }
  for (const RetrievalBatch& batch : retrieval_batches(run)) {
    if (!fs::exists(batch.folder / "report.json")) run_tool(run, retrieval_command(run, batch), context);
    split(batch);
  }
  std::vector<NamedReport> parts;
  for (const PlannedCell& cell : run.plan.cells) {
    ReportDocument part = read_cell(run, cell);
    label(run, cell, part);
    parts.push_back({cell.result.string(), std::move(part)});
  }
  for (const PlannedRetrieval& planned : run.plan.retrievals) {
    ReportDocument part = read_cell(run, planned);
    label(run, planned, part);
    parts.push_back({planned.result.string(), std::move(part)});
  }
  ReportDocument document = merge_reports(parts, false, context.log);
  document.title = run.config.title;
  document.question = run.config.question;
  document.claims = run.config.claims;
  return document;
}

}  // namespace kvq::apps
