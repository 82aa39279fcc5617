#include <algorithm>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/loaded_model.h"
#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/experiment_kept.h"
#include "kvq-eval/experiment_run.h"
#include "kvq-eval/held_out.h"
#include "kvq-eval/report_folder.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>
#include <kvq/eval/search.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

namespace {

namespace fs = std::filesystem;

struct SearchOptions : ModelArguments {
  fs::path text, calibration_text, output;
  std::vector<std::string> recipes;
  std::string metric = "fisher";
  double target_kl = 0, budget_bits = 0;
  std::int64_t samples = 16, seqlen = 2048, windows = 4;
};

SearchGoal goal_of(const CLI::App& command, const SearchOptions& options) {
  const bool target = command.count("--target-kl") > 0, budget = command.count("--budget-bits") > 0;
  if (target == budget)
    fail(ErrorKind::Usage,
         "give either --target-kl (nats, for the fewest bits) or --budget-bits (for the least damage)");
  if (budget && options.budget_bits == 0)
    fail(ErrorKind::Usage, "--budget-bits 0: no cache takes no bits; the smallest recipes take one to two");
  SearchGoal goal;
  if (target) goal.target_kl = options.target_kl;
  if (budget) goal.budget_bits = options.budget_bits;
  return goal;
}

std::vector<Recipe> ladder_of(const SearchOptions& options) {
  std::vector<Recipe> ladder;
  for (const std::string& text : options.recipes) ladder.push_back(resolve_recipe(text));
  if (ladder.empty()) ladder = usual_ladder();
  if (options.metric == "query") std::transform(ladder.begin(), ladder.end(), ladder.begin(), with_query_metric);
  if (!options.recipes.empty()) check_ladder(ladder);
  return ladder;
}

/// With what the ladder needs, and no backward pass where nothing does.
CalibrationConfig calibration_of(const SearchOptions& options, const std::vector<Recipe>& ladder) {
  CalibrationConfig calibration{"", {}, options.samples, options.seqlen};
  const auto any = [&](bool (*needs)(const SideRecipe&)) {
    return std::any_of(ladder.begin(), ladder.end(),
                       [&](const Recipe& recipe) { return needs(recipe.key) || needs(recipe.value); });
  };
  calibration.metrics = any(needs_metric);
  calibration.forward_only = calibration.metrics && !any(needs_gradients);
  return calibration;
}

/// Texts, and what the model says of them. Writes the parts of a text that is cut in two.
ExperimentInputs inputs_of(const SearchOptions& options, const std::vector<Recipe>& ladder, RunContext& context) {
  ExperimentInputs inputs;
  inputs.model = options.model;
  inputs.dtype = options.dtype;
  inputs.bos = options.bos;
  inputs.device = options.device;
  inputs.cache = "simulated";
  if (options.calibration_text.empty()) {
    const SplitText parts = split_text(options.text, options.output / "texts");
    inputs.calibration_texts = {parts.calibration};
    inputs.texts = {parts.held_out};
  } else {
    const auto whole = [](const fs::path& path) {
      return LabelledText{path.stem().string(), path, read_text(TextArgument::parse(path.string())).sha256};
    };
    inputs.calibration_texts = {whole(options.calibration_text)};
    inputs.texts = {whole(options.text)};
    if (inputs.texts[0].sha256 == inputs.calibration_texts[0].sha256)
      fail(ErrorKind::Usage, "--calibration-text and --text are the same text: what was fitted to it is no judge");
  }
  const LoadedModel loaded = open_model(options, context);  // and closed again: the tools open it themselves
  inputs.model_sha256 = loaded.model->sha256();
  for (const Recipe& recipe : ladder)
    check_shape(recipe, loaded.model->config().kv.kv_heads, loaded.model->config().kv.head_dim);
  const std::vector<TokenStream> stream = {
      tokenize(*loaded.tokenizer, read_text({inputs.texts[0].label, inputs.texts[0].path}))};
  sequential_windows(stream, options.seqlen, loaded.prepend_bos, loaded.bos(), 1);
  return inputs;
}

/// What is known of `recipes` after a round.
std::vector<TriedRecipe> tried_in(const ReportDocument& document, const std::vector<Recipe>& recipes) {
  std::vector<TriedRecipe> tried;
  for (const Recipe& recipe : recipes) {
    const std::vector<VariantResult>& rows = document.evaluations.front().report.results;
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const VariantResult& other) { return other.name == short_form(recipe); });
    KVQ_ASSERT(row != rows.end());
    tried.push_back({recipe, row->bits_counted, row->kl_mean});
  }
  return tried;
}

/// Copies the chosen quantizer to where the next tool finds it.
void keep_quantizer(const ExperimentPlan& plan, const Recipe& recipe, const fs::path& target) {
  const auto cell = std::find_if(plan.cells.begin(), plan.cells.end(),
                                 [&](const PlannedCell& other) { return other.recipe == recipe; });
  KVQ_ASSERT(cell != plan.cells.end());
  AtomicFile file(target, true);
  std::error_code error;
  fs::copy_file(cell->quantizer, file.temporary(), error);
  if (error) fail(ErrorKind::Io, fmt::format("{}: cannot be written: {}", target.string(), error.message()));
  file.commit();
}

std::string choice_text(const SearchGoal& goal, const TriedRecipe& best, std::size_t tried) {
  return fmt::format("Chosen: {} — of {} the {} with {}: {:.2f} bits per value counted, KL {:.4g}",
                     short_form(best.recipe), plural(static_cast<std::int64_t>(tried), "tried recipe"),
                     goal.target_kl ? "cheapest" : "least harmful", goal.text(), best.bits, best.kl);
}

void run(const Tool& tool, const CLI::App& command, const SearchOptions& options, RunContext& context) {
  open_device(options);
  const SearchGoal goal = goal_of(command, options);
  const std::vector<Recipe> ladder = ladder_of(options);
  ReportFolder folder(options.output, true);  // made anew with every search; what counts are the cells
  const ExperimentLock lock(options.output);
  const bool had_texts = fs::exists(options.output / "texts");
  ExperimentInputs inputs;
  try {
    inputs = inputs_of(options, ladder, context);
  } catch (...) {
    std::error_code ignored;
    if (!had_texts) fs::remove_all(options.output / "texts", ignored);
    throw;
  }
  ExperimentConfig config;
  config.title = "Search for a recipe";
  config.question = fmt::format("Which recipe is best with {}, judged on text that it was not fitted to?", goal.text());
  config.seqlen = options.seqlen;
  config.windows = options.windows;
  config.calibrations = {calibration_of(options, ladder)};
  config.cells = {{ladder}};
  ExperimentPlan plan = plan_experiment(config, inputs, options.output);
  const auto experiment = [&] { return ExperimentRun{config, inputs, plan, options.output, tool.common().quiet}; };
  ReportDocument document = run_experiment(experiment(), context);
  std::vector<TriedRecipe> tried = tried_in(document, ladder);
  if (const std::vector<Recipe> pairs = pairs_at_border(goal, ladder, tried); !pairs.empty()) {
    context.log.info(
        fmt::format("{} between two rungs of the ladder", plural(static_cast<std::int64_t>(pairs.size()), "pair")));
    config.cells.push_back({pairs});
    plan = plan_experiment(config, inputs, options.output);
    document = run_experiment(experiment(), context);
    for (TriedRecipe& pair : tried_in(document, pairs)) tried.push_back(std::move(pair));
  }
  const std::optional<std::size_t> best = best_recipe(goal, tried);
  document.commands.insert(document.commands.begin(), tool.command_line());
  // The report recommends the cheapest within this: with a budget the chosen one's own divergence.
  document.max_kl = goal.target_kl ? *goal.target_kl : best ? tried[*best].kl : 0.0;
  folder.write(document);
  const std::string table = to_text(perplexity_table(document.evaluations.front().report));
  if (!best) {
    fs::remove(options.output / "quantizer.h5");  // of an earlier goal
    const auto closest = std::min_element(tried.begin(), tried.end(), [&](const TriedRecipe& a, const TriedRecipe& b) {
      return goal.target_kl ? a.kl < b.kl : a.bits < b.bits;
    });
    fail(ErrorKind::Numeric,
         fmt::format("none of {} has {}; {} comes closest: {:.2f} counted bits, KL {:.4g} (all are in '{}')",
                     plural(static_cast<std::int64_t>(tried.size()), "tried recipe"), goal.text(),
                     short_form(closest->recipe), closest->bits, closest->kl, (options.output / "report.md").string()));
  }
  keep_quantizer(plan, tried[*best].recipe, options.output / "quantizer.h5");
  if (!tool.common().json) {
    return print_result(fmt::format("{}\n{}\nQuantizer: {}", table, choice_text(goal, tried[*best], tried.size()),
                                    (options.output / "quantizer.h5").string()));
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(document_json(document));
  json["search"] = {{"target_kl", goal.target_kl ? nlohmann::ordered_json(*goal.target_kl) : nullptr},
                    {"budget_bits", goal.budget_bits ? nlohmann::ordered_json(*goal.budget_bits) : nullptr},
                    {"chosen", short_form(tried[*best].recipe)},
                    {"tried", nlohmann::ordered_json::array()}};
  for (const TriedRecipe& one : tried) json["search"]["tried"].push_back(short_form(one.recipe));
  print_result(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

Command search_command(Tool& tool) {
  auto options = std::make_shared<SearchOptions>();
  CLI::App* command = tool.app().add_subcommand(
      "search", "Finds the recipe with the fewest bits within a KL divergence, or the least damage within a budget");
  add_model_options(*command, *options);
  add_device_option(*command, *options);
  command->add_option("--text", options->text, "text to judge on; without --calibration-text, its last fifth")
      ->required();
  command->add_option("--calibration-text", options->calibration_text,
                      "text to calibrate on; without it, the first four fifths of --text");
  command->add_option("--target-kl", options->target_kl, "mean KL, in nats, that the recipe may cost")
      ->check(real_number(0, 1e9, "a divergence in nats"));
  command->add_option("--budget-bits", options->budget_bits, "counted bits per value that it may take")
      ->check(real_number(0, 16, "a number of bits"));
  command
      ->add_option("--recipe", options->recipes,
                   "a rung of the ladder, short form or TOML file; repeat for several. Without: kvq1.5 to kvq4, then "
                   "nuq5-1%, nuq6-1%, nuq8-1%")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--metric", options->metric,
                   "fisher: recipes as they are; query: none uses gradients, and no backward pass is run")
      ->check(CLI::IsMember({"fisher", "query"}))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "sequences to calibrate on")
      ->check(whole_number(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--seqlen", options->seqlen, "tokens of a sequence and of a judged window")
      ->check(whole_number(2, 1 << 24))
      ->capture_default_str();
  command->add_option("--windows", options->windows, "judged windows, at most")
      ->check(whole_number(1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("-o,--output", options->output,
                   "folder for quantizer.h5, the reports and all results; what is there already is used")
      ->required();
  tool.add_common(*command, {.force = false, .dry_run = false});
  return {command, [&tool, command, options](RunContext& context) { run(tool, *command, *options, context); }};
}

}  // namespace kvq::apps
