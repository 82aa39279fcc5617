#include "kvq-eval/experiment_run.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "common/child_process.h"
#include "common/settings.h"

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/eval/report_reader.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq::apps {

namespace {

namespace fs = std::filesystem;

/// Caches of one pass over the text: each costs memory, and a killed run begins its window again.
constexpr std::size_t kCachesAtOnce = 8;

struct ToolCommand {
  std::string tool;
  std::vector<std::string> arguments;  ///< the command's name first, where the tool has several
  std::string text() const {
    std::string line = tool;
    for (std::size_t index = 0; index < arguments.size(); ++index) {
      const bool recipe = index > 0 && arguments[index - 1] == "--recipe";  // its '/' and '=' are no path's
      line += " " + (recipe ? shell_word(arguments[index]) : shell_word_by_name(arguments[index]));
    }
    return line;
  }
};

ToolCommand fisher_command(const ExperimentRun& run, const PlannedCalibration& calibration) {
  const CalibrationConfig& config = calibration.config;
  ToolCommand command{"kvq-fisher", {"--model", run.inputs.model.string()}};
  auto& arguments = command.arguments;
  for (const LabelledText& text : calibration.texts)
    arguments.insert(arguments.end(), {"--text", text.label + "=" + text.path.string()});
  arguments.insert(arguments.end(),
                   {"--samples", std::to_string(config.samples), "--seqlen", std::to_string(config.seqlen), "--seed",
                    std::to_string(config.seed), "--dtype", run.inputs.dtype, "--bos", run.inputs.bos});
  arguments.insert(arguments.end(), {"-o", calibration_file(run.folder, calibration).string()});
  return command;
}

/// Recipes that one thresholds file serves: same sinks, same cap. Fractions are what the recipes need of it.
struct FitGroup {
  std::size_t calibration = 0;
  std::vector<Recipe> recipes;
  std::set<double> fractions;
  int sinks = 0;
  double cap = 0;
  fs::path thresholds;  ///< empty: none needed
};

std::vector<FitGroup> fit_groups(const ExperimentRun& run) {
  std::map<std::tuple<std::size_t, bool, int, double>, FitGroup> groups;
  std::set<fs::path> known;
  for (const PlannedCell& cell : run.plan.cells) {
    if (fs::exists(cell.result) || fs::exists(cell.quantizer) || !known.insert(cell.quantizer).second) continue;
    const bool needs = needs_thresholds_file(cell.recipe.key) || needs_thresholds_file(cell.recipe.value);
    const int sinks = needs ? cell.recipe.sinks : 0;
    const double cap = needs ? cell.recipe.key.cap : 0;
    FitGroup& group = groups[{cell.calibration, needs, sinks, cap}];
    group.calibration = cell.calibration;
    group.sinks = sinks;
    group.cap = cap;
    group.recipes.push_back(cell.recipe);
    for (const Side side : kSides) {
      if (needs_thresholds_file(cell.recipe.side(side))) group.fractions.insert(cell.recipe.side(side).outliers);
    }
  }
  std::vector<FitGroup> list;
  for (auto& [key, group] : groups) {
    if (!group.fractions.empty()) {
      std::string identity =
          run.plan.calibrations[group.calibration].key + fmt::format("\nsinks {}\ncap {}\n", group.sinks, group.cap);
      for (const double fraction : group.fractions) identity += fmt::format("{}\n", fraction);
      group.thresholds = run.folder / "thresholds" / (sha256_of(identity).substr(0, 20) + ".h5");
    }
    list.push_back(std::move(group));
  }
  return list;
}

ToolCommand threshold_command(const ExperimentRun& run, const FitGroup& group) {
  std::string fractions;
  for (const double fraction : group.fractions)
    fractions += fmt::format("{}{}", fractions.empty() ? "" : ",", fraction);
  ToolCommand command{"kvq-threshold",
                      {"--calib", calibration_file(run.folder, run.plan.calibrations[group.calibration]).string(),
                       "--outliers", fractions, "--sinks", std::to_string(group.sinks)}};
  if (group.cap > 0) command.arguments.insert(command.arguments.end(), {"--cap", fmt::format("{}", group.cap)});
  command.arguments.insert(command.arguments.end(), {"-o", group.thresholds.string()});
  return command;
}

ToolCommand fit_command(const ExperimentRun& run, const FitGroup& group) {
  const PlannedCalibration& calibration = run.plan.calibrations[group.calibration];
  ToolCommand command{"kvq-fit", {"--calib", calibration_file(run.folder, calibration).string()}};
  if (!group.thresholds.empty())
    command.arguments.insert(command.arguments.end(), {"--thresholds", group.thresholds.string()});
  for (const Recipe& recipe : group.recipes)
    command.arguments.insert(command.arguments.end(), {"--recipe", short_form(recipe)});
  command.arguments.insert(command.arguments.end(), {"-o", (run.folder / "quantizers" / calibration.key).string()});
  return command;
}

/// Cells of one pass: same text, same parts.
struct EvalBatch {
  std::vector<const PlannedCell*> cells;
  fs::path folder;  ///< of the run's own report and journal
};

std::vector<EvalBatch> eval_batches(const ExperimentRun& run) {
  std::vector<EvalBatch> batches;
  std::map<std::tuple<std::size_t, std::string, std::string>, std::size_t> open;  // batch that takes more
  for (const PlannedCell& cell : run.plan.cells) {
    if (fs::exists(cell.result)) continue;
    const bool each = cell.only_layers == "each";
    const auto group = std::make_tuple(cell.text, cell.only_layers, cell.only_side);
    const auto known = open.find(group);
    if (known == open.end() || batches[known->second].cells.size() >= (each ? 1 : kCachesAtOnce)) {
      open[group] = batches.size();
      batches.emplace_back();
    }
    batches[open[group]].cells.push_back(&cell);
  }
  for (EvalBatch& batch : batches) {
    std::string identity;
    for (const PlannedCell* cell : batch.cells) identity += cell->result.filename().string() + "\n";
    batch.folder = run.folder / "runs" / sha256_of(identity).substr(0, 20);
  }
  return batches;
}

ToolCommand eval_command(const ExperimentRun& run, const EvalBatch& batch) {
  const PlannedCell& first = *batch.cells.front();
  const std::string text = run.inputs.texts[first.text].path.string();
  ToolCommand command{"kvq-eval",
                      {"perplexity", "--model", run.inputs.model.string(), "--text", text, "--seqlen",
                       std::to_string(run.config.seqlen), "--max-windows", std::to_string(run.config.windows),
                       "--dtype", run.inputs.dtype, "--bos", run.inputs.bos, "--cache", run.inputs.cache}};
  auto& arguments = command.arguments;
  if (!first.only_layers.empty()) arguments.insert(arguments.end(), {"--only-layers", first.only_layers});
  if (!first.only_side.empty()) arguments.insert(arguments.end(), {"--only-side", first.only_side});
  for (const PlannedCell* cell : batch.cells)
    arguments.insert(arguments.end(), {"--quantizer", cell->quantizer.string()});
  arguments.insert(arguments.end(), {"-o", batch.folder.string()});
  return command;
}

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
  if (!run.discard_calibrations) return;
  for (const PlannedCalibration& calibration : run.plan.calibrations)
    fs::remove(calibration_file(run.folder, calibration));
}

/// A report that an earlier step of the experiment left. Throws what read_report() throws, with the way out.
ReportDocument read_kept(const fs::path& path) {
  try {
    return read_report(path);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("{}; the experiment makes it again once it is deleted", error.what()));
  }
}

/// One file per cell, so that each can be used by itself.
void split(const ExperimentRun& run, const EvalBatch& batch) {
  const ReportDocument report = read_kept(batch.folder / "report.json");
  const Evaluation& evaluation = report.evaluations.front();
  for (const PlannedCell* cell : batch.cells) {
    const std::string sha256 = sha256_of_file(cell->quantizer);
    ReportDocument part;
    part.evaluations.push_back(evaluation);
    std::erase_if(part.evaluations.front().report.results,
                  [&](const VariantResult& row) { return row.name != "none" && row.source.sha256 != sha256; });
    KVQ_ASSERT(part.evaluations.front().report.results.size() > 1);
    for (VariantResult& row : part.evaluations.front().report.results) {
      if (row.name == "none") continue;
      // Beside others of its recipe in one pass it was named after its file, too.
      const std::string which = row.parts.all() ? "" : row.name.substr(row.name.rfind(" ["));
      row.name = short_form(cell->recipe) + which;
    }
    part.commands = lines_of(commands_file(cell->quantizer));
    part.commands.push_back(eval_command(run, batch).text());
    write_file_atomically(cell->result, document_json(part), true);
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
    const auto end = std::min(row.name.find(" ["), row.name.size());
    row.name.insert(end, fmt::format(" ({})", name));
  }
}

}  // namespace

Remaining remaining_steps(const ExperimentRun& run) {
  Remaining remaining;
  remaining.cells = run.plan.cells.size();
  for (const PlannedCell& cell : run.plan.cells) remaining.finished_cells += fs::exists(cell.result) ? 1 : 0;
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
  for (const EvalBatch& batch : eval_batches(run)) remaining.commands.push_back(eval_command(run, batch).text());
  return remaining;
}

ReportDocument run_experiment(const ExperimentRun& run, RunContext& context) {
  for (const char* name : {"calibrations", "thresholds", "quantizers", "cells", "runs"})
    fs::create_directories(run.folder / name);
  make_quantizers(run, context);
  for (const EvalBatch& batch : eval_batches(run)) {
    // A report without its cells: the last run was stopped between the two.
    if (!fs::exists(batch.folder / "report.json")) run_tool(run, eval_command(run, batch), context);
    split(run, batch);
  }
  std::vector<NamedReport> parts;
  for (const PlannedCell& cell : run.plan.cells) {
    ReportDocument part = read_kept(cell.result);
    label(run, cell, part);
    parts.push_back({cell.result.string(), std::move(part)});
  }
  ReportDocument document = merge_reports(parts, false, context.log);
  document.title = run.config.title;
  document.question = run.config.question;
  document.claims = run.config.claims;
  return document;
}

}  // namespace kvq::apps
