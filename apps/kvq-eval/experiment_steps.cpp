#include "kvq-eval/experiment_steps.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "common/settings.h"

#include <kvq/core/hash.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq::apps {

namespace fs = std::filesystem;

namespace {

/// Caches of one pass over the text: each costs memory, and a killed run begins its window again.
constexpr std::size_t kCachesAtOnce = 8;

/// What some result that is not there needs and lacks, each once: recipe and calibration.
std::vector<std::pair<const Recipe*, std::size_t>> missing_quantizers(const ExperimentRun& run) {
  std::vector<std::pair<const Recipe*, std::size_t>> list;
  std::set<fs::path> known;
  const auto add = [&](const auto& planned) {
    if (!planned.quantizer.empty() && !fs::exists(planned.result) && !fs::exists(planned.quantizer) &&
        known.insert(planned.quantizer).second)
      list.emplace_back(&planned.recipe, planned.calibration);
  };
  for (const PlannedCell& cell : run.plan.cells) add(cell);
  for (const PlannedRetrieval& retrieval : run.plan.retrievals) add(retrieval);
  return list;
}

void add_model_settings(const ExperimentRun& run, std::vector<std::string>& arguments) {
  arguments.insert(arguments.end(), {"--dtype", run.inputs.dtype, "--bos", run.inputs.bos});
  if (run.inputs.device != "cpu") arguments.insert(arguments.end(), {"--device", run.inputs.device});
}

}  // namespace

std::string ToolCommand::text() const {
  std::string line = tool;
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    const bool recipe = index > 0 && arguments[index - 1] == "--recipe";  // its '/' and '=' are no path's
    line += " " + (recipe ? shell_word(arguments[index]) : shell_word_by_name(arguments[index]));
  }
  return line;
}

void EvalBatch::add(const PlannedCell& cell) {
  cells.push_back(&cell);
  const auto once = [](std::vector<fs::path>& files, const fs::path& file) {
    if (!file.empty() && std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  };
  if (!has_cache_of(cell) && cell.quantizer.empty()) recipes.push_back(cell.recipe);
  once(quantizers, cell.quantizer);
  once(weights, cell.weights_file);
}

bool EvalBatch::has_cache_of(const PlannedCell& cell) const {
  if (!cell.quantizer.empty())
    return std::find(quantizers.begin(), quantizers.end(), cell.quantizer) != quantizers.end();
  return cell.recipe.is_baseline() || std::find(recipes.begin(), recipes.end(), cell.recipe) != recipes.end();
}

ToolCommand fisher_command(const ExperimentRun& run, const PlannedCalibration& calibration, bool weights) {
  const CalibrationConfig& config = calibration.config;
  ToolCommand command{"kvq-fisher", {"--model", run.inputs.model.string()}};
  auto& arguments = command.arguments;
  for (const LabelledText& text : calibration.texts)
    arguments.insert(arguments.end(), {"--text", text.label + "=" + text.path.string()});
  arguments.insert(arguments.end(), {"--samples", std::to_string(config.samples), "--seqlen",
                                     std::to_string(config.seqlen), "--seed", std::to_string(config.seed)});
  add_model_settings(run, arguments);
  if (weights) arguments.emplace_back("--weights");
  if (config.forward_only) arguments.emplace_back("--forward-only");
  if (config.metrics && !config.forward_only && !weights) arguments.emplace_back("--metrics");
  if (config.query_heads != "joint") arguments.insert(arguments.end(), {"--query-heads", config.query_heads});
  const fs::path output =
      weights ? weight_fisher_file(run.folder, calibration) : calibration_file(run.folder, calibration);
  arguments.insert(arguments.end(), {"-o", output.string()});
  return command;
}

std::vector<WeightsGroup> weights_groups(const ExperimentRun& run) {
  std::vector<WeightsGroup> groups;
  for (std::size_t index = 0; index < run.plan.calibrations.size(); ++index) {
    const PlannedCalibration& calibration = run.plan.calibrations[index];
    WeightsGroup group{calibration, {}, run.folder / "weights" / calibration.key};
    std::set<fs::path> known;
    for (const PlannedCell& cell : run.plan.cells) {
      if (cell.calibration != index || !cell.weights || fs::exists(cell.result) || fs::exists(cell.weights_file) ||
          !known.insert(cell.weights_file).second)
        continue;
      group.schemes.push_back(*cell.weights);
    }
    if (!group.schemes.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

ToolCommand weights_command(const ExperimentRun& run, const WeightsGroup& group) {
  ToolCommand command{"kvq-fit",
                      {"--model", run.inputs.model.string(), "--weight-fisher",
                       weight_fisher_file(run.folder, group.calibration).string()}};
  for (const WeightScheme& scheme : group.schemes)
    command.arguments.insert(command.arguments.end(), {"--weights", short_form(scheme)});
  command.arguments.insert(command.arguments.end(), {"-o", group.folder.string()});
  return command;
}

std::vector<FitGroup> fit_groups(const ExperimentRun& run) {
  std::map<std::tuple<std::size_t, bool, int, double>, FitGroup> groups;
  for (const auto& [recipe, calibration] : missing_quantizers(run)) {
    const bool needs = needs_thresholds_file(recipe->key) || needs_thresholds_file(recipe->value);
    const int sinks = needs ? recipe->sinks : 0;
    const double cap = needs ? recipe->key.cap : 0;
    FitGroup& group = groups[{calibration, needs, sinks, cap}];
    group.calibration = calibration;
    group.sinks = sinks;
    group.cap = cap;
    group.recipes.push_back(*recipe);
    for (const Side side : kSides) {
      if (needs_thresholds_file(recipe->side(side))) group.fractions.insert(recipe->side(side).outliers);
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

std::vector<EvalBatch> eval_batches(const ExperimentRun& run) {
  std::vector<EvalBatch> batches;
  // The batch that takes more. Pairs of caches and weights are of one calibration.
  std::map<std::tuple<std::size_t, std::string, std::string, std::string, std::size_t>, std::size_t> open;
  for (const PlannedCell& cell : run.plan.cells) {
    if (fs::exists(cell.result)) continue;
    const bool each = cell.only_layers == "each";
    std::string beside;
    for (const WeightScheme& weights : cell.beside) beside += short_form(weights) + " ";
    const auto group = std::make_tuple(cell.text, cell.only_layers, cell.only_side, beside,
                                       beside.empty() ? std::size_t{0} : cell.calibration);
    const auto known = open.find(group);
    const std::size_t most = each ? 1 : std::max(kCachesAtOnce, cell.beside.size() + 1);
    if (known == open.end() ||
        (!batches[known->second].has_cache_of(cell) && batches[known->second].is_full(cell.beside.size(), most))) {
      open[group] = batches.size();
      batches.emplace_back();
    }
    batches[open[group]].add(cell);
  }
  for (EvalBatch& batch : batches) {
    std::string identity;
    for (const PlannedCell* cell : batch.cells) identity += cell->result.filename().string() + "\n";
    batch.folder = run.folder / "runs" / sha256_of(identity).substr(0, 20);
  }
  return batches;
}

std::vector<RetrievalBatch> retrieval_batches(const ExperimentRun& run) {
  std::vector<RetrievalBatch> batches;
  for (std::size_t question = 0; question < run.config.retrievals.size(); ++question) {
    bool full = true;
    for (const PlannedRetrieval& planned : run.plan.retrievals) {
      if (planned.question != question || fs::exists(planned.result)) continue;
      if (full) batches.emplace_back();
      batches.back().caches.push_back(&planned);
      full = batches.back().caches.size() == kCachesAtOnce;
    }
  }
  for (RetrievalBatch& batch : batches) {
    std::string identity;
    for (const PlannedRetrieval* planned : batch.caches) identity += planned->result.filename().string() + "\n";
    batch.folder = run.folder / "runs" / sha256_of(identity).substr(0, 20);
  }
  return batches;
}

ToolCommand retrieval_command(const ExperimentRun& run, const RetrievalBatch& batch) {
  ToolCommand command{"kvq-eval", retrieval_arguments(run.config.retrievals[batch.caches.front()->question])};
  auto& arguments = command.arguments;
  arguments.insert(arguments.end(), {"--model", run.inputs.model.string(), "--cache", run.inputs.cache});
  add_model_settings(run, arguments);
  for (const PlannedRetrieval* planned : batch.caches) {
    if (planned->quantizer.empty()) {
      arguments.insert(arguments.end(), {"--recipe", short_form(planned->recipe)});
    } else {
      arguments.insert(arguments.end(), {"--quantizer", planned->quantizer.string()});
    }
  }
  arguments.insert(arguments.end(), {"-o", batch.folder.string()});
  return command;
}

ToolCommand eval_command(const ExperimentRun& run, const EvalBatch& batch) {
  const PlannedCell& first = *batch.cells.front();
  const std::string text = run.inputs.texts[first.text].path.string();
  ToolCommand command{"kvq-eval",
                      {"perplexity", "--model", run.inputs.model.string(), "--text", text, "--seqlen",
                       std::to_string(run.config.seqlen), "--max-windows", std::to_string(run.config.windows)}};
  auto& arguments = command.arguments;
  // Weights alone have the model's own cache.
  if (!batch.quantizers.empty() || !batch.recipes.empty())
    arguments.insert(arguments.end(), {"--cache", run.inputs.cache});
  add_model_settings(run, arguments);
  const bool needs_prompt = std::any_of(batch.cells.begin(), batch.cells.end(), [](const PlannedCell* cell) {
    return chooses_at_prompt_end(cell->recipe.eviction.rule);
  });
  if (needs_prompt) arguments.insert(arguments.end(), {"--prompt-tokens", std::to_string(run.config.prompt)});
  if (needs_prompt || run.config.judge_from > 0)
    arguments.insert(arguments.end(), {"--judge-from", std::to_string(run.config.judge_from)});
  if (!first.only_layers.empty()) arguments.insert(arguments.end(), {"--only-layers", first.only_layers});
  if (!first.only_side.empty()) arguments.insert(arguments.end(), {"--only-side", first.only_side});
  for (const fs::path& quantizer : batch.quantizers)
    arguments.insert(arguments.end(), {"--quantizer", quantizer.string()});
  for (const Recipe& recipe : batch.recipes) arguments.insert(arguments.end(), {"--recipe", short_form(recipe)});
  for (const fs::path& weights : batch.weights) arguments.insert(arguments.end(), {"--weights", weights.string()});
  arguments.insert(arguments.end(), {"-o", batch.folder.string()});
  return command;
}

}  // namespace kvq::apps
