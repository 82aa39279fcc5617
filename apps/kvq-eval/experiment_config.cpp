#include "kvq-eval/experiment_config.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/config/toml_table.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/tasks/ruler.h>

namespace kvq::apps {

namespace {

std::string needed_text(const TomlTable& table, const std::string& key, const std::string& what) {
  const auto value = table.text(key);
  if (!value || value->empty()) table.refuse(key, "is missing: " + what);
  return *value;
}

std::int64_t whole(const TomlTable& table, const std::string& key, std::int64_t otherwise, std::int64_t least,
                   std::int64_t most = std::int64_t{1} << 30) {
  const std::int64_t value = table.integer(key).value_or(otherwise);
  if (value < least || value > most) table.refuse(key, fmt::format("is {}; {} to {} are possible", value, least, most));
  return value;
}

CalibrationConfig read_calibration(const TomlTable& table) {
  CalibrationConfig calibration;
  calibration.table = table;
  calibration.name = table.text("name").value_or("");
  calibration.texts = table.texts("texts").value_or(std::vector<std::string>{});
  calibration.samples = whole(table, "samples", calibration.samples, 1);
  calibration.seqlen = whole(table, "seqlen", calibration.seqlen, 2);
  calibration.seed = static_cast<std::uint64_t>(whole(table, "seed", 0, 0));
  calibration.query_heads = table.text("query-heads").value_or(calibration.query_heads);
  if (calibration.query_heads != "joint" && calibration.query_heads != "mean" && calibration.query_heads != "max")
    table.refuse("query-heads", fmt::format("is '{}'; known: joint, mean, max", shortened(calibration.query_heads)));
  calibration.forward_only = table.flag("forward-only").value_or(false);
  calibration.metrics = table.flag("metrics").value_or(false);
  if (calibration.forward_only && calibration.query_heads != "joint")
    table.refuse("query-heads", "does not go with forward-only: there are no gradients");
  table.reject_unknown();
  return calibration;
}

CellConfig read_cell(const TomlTable& table, const std::filesystem::path& folder,
                     const std::set<std::string>& calibrations) {
  CellConfig cell;
  cell.table = table;
  const auto recipes = table.texts("recipes");
  const auto weights = table.texts("weights");
  if (!recipes && !weights) table.refuse("recipes", "is missing: short forms, or TOML files beside this one");
  for (const std::string& text : recipes.value_or(std::vector<std::string>{})) {
    try {
      cell.recipes.push_back(resolve_recipe(text.ends_with(".toml") ? (folder / text).string() : text));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Usage) throw;
      table.refuse("recipes", fmt::format("holds '{}': {}", shortened(text), error.what()));
    }
    if (cell.recipes.back().is_baseline()) table.refuse("recipes", "holds 'none', which every report has anyway");
  }
  cell.calibrations = table.texts("calibrations").value_or(std::vector<std::string>{});
  for (const std::string& name : cell.calibrations) {
    if (calibrations.contains(name)) continue;
    std::string list;
    for (const std::string& known : calibrations) list += (list.empty() ? "" : ", ") + known;
    table.refuse("calibrations", fmt::format("holds '{}'; known: {}", shortened(name),
                                             list.empty() ? "none, no calibration has a name" : list));
  }
  cell.texts = table.texts("texts").value_or(std::vector<std::string>{});
  cell.only_layers = table.text("only-layers").value_or("");
  cell.only_side = table.text("only-side").value_or("");
  if (!cell.only_side.empty() && cell.only_side != "key" && cell.only_side != "value" && cell.only_side != "each")
    table.refuse("only-side", fmt::format("is '{}'; known: key, value, each", shortened(cell.only_side)));
  for (const std::string& text : weights.value_or(std::vector<std::string>{})) {
    try {
      cell.weights.push_back(parse_weight_scheme(text));
    } catch (const Error& error) {
      table.refuse("weights", fmt::format("holds '{}': {}", shortened(text), error.what()));
    }
  }
  if (!cell.weights.empty() && !(cell.only_layers.empty() && cell.only_side.empty()))
    table.refuse("weights", "goes with whole caches, not with only-layers or only-side");
  for (const Recipe& recipe : cell.recipes) {
    if (recipe.evicts() && !cell.only_side.empty())
      table.refuse("only-side",
                   fmt::format("cannot go with '{}', which evicts keys and values together", short_form(recipe)));
    if (recipe.tiered() && !cell.only_side.empty())
      table.refuse("only-side",
                   fmt::format("cannot go with '{}', whose keys and values have the same tiers", short_form(recipe)));
  }
  table.reject_unknown();
  return cell;
}

std::vector<RetrievalConfig> read_retrievals(const TomlTable& experiment) {
  std::vector<RetrievalConfig> list;
  for (const char* name : {"passkey", "ruler"}) {
    const std::optional<TomlTable> table = experiment.table(name);
    if (!table) continue;
    RetrievalConfig retrieval;
    retrieval.table = table;
    if (name == std::string("ruler")) {
      std::vector<std::string> known = ruler_names();
      known.emplace_back("all");
      retrieval.ruler = table->texts("tasks").value_or(std::vector<std::string>{"all"});
      for (const std::string& word : retrieval.ruler) {
        if (std::find(known.begin(), known.end(), word) == known.end())
          table->refuse("tasks", fmt::format("holds '{}'; known: {}", shortened(word), fmt::join(known, ", ")));
      }
      if (std::set<std::string>(retrieval.ruler.begin(), retrieval.ruler.end()).size() < retrieval.ruler.size())
        table->refuse("tasks", "names a kind twice");
      retrieval.samples = whole(*table, "samples", retrieval.samples, 1, 10'000);
    } else {
      retrieval.depths = whole(*table, "depths", retrieval.depths, 1, 100);
      retrieval.trials = whole(*table, "trials", retrieval.trials, 1, 1000);
    }
    retrieval.lengths = table->integers("lengths").value_or(retrieval.lengths);
    for (std::size_t index = 1; index < retrieval.lengths.size(); ++index) {
      const auto here = retrieval.lengths.begin() + static_cast<std::ptrdiff_t>(index);
      if (std::find(retrieval.lengths.begin(), here, *here) != here)
        table->refuse("lengths", fmt::format("holds {} twice", *here));
    }
    for (const std::int64_t length : retrieval.lengths) {
      if (length < 1 || length > 1 << 24)
        table->refuse("lengths", fmt::format("holds {}; 1 to {} are possible", length, 1 << 24));
    }
    retrieval.seed = static_cast<std::uint64_t>(whole(*table, "seed", 0, 0));
    retrieval.prompt = table->text("prompt").value_or(retrieval.prompt);
    if (retrieval.prompt != "raw" && retrieval.prompt != "chat")
      table->refuse("prompt", fmt::format("is '{}'; known: raw, chat", shortened(retrieval.prompt)));
    table->reject_unknown();
    list.push_back(std::move(retrieval));
  }
  return list;
}

/// Names of all wholly quantized caches in the report.
std::set<std::string> cache_names(const ExperimentConfig& config) {
  std::set<std::string> names = {"none"};
  for (const CellConfig& cell : config.cells) {
    if (!cell.only_layers.empty() || !cell.only_side.empty()) continue;
    for (const CalibrationConfig& calibration : config.calibrations) {
      const std::string behind = config.calibrations.size() > 1 ? fmt::format(" ({})", calibration.name) : "";
      for (const WeightScheme& weights : cell.weights) names.insert(short_form(weights) + behind);
      for (const Recipe& recipe : cell.recipes) {
        names.insert(short_form(recipe) + behind);
        for (const WeightScheme& weights : cell.weights)
          names.insert(short_form(recipe) + behind + " + " + short_form(weights));
      }
    }
  }
  return names;
}

/// A row as the report will call it: recipe and weights in their canonical form, "(CALIBRATION)" behind the first of
/// them as it is.
std::string cache_name(const TomlTable& table, const std::string& key) {
  const std::string text =
      needed_text(table, key, "the name of a cache: a recipe, with (CALIBRATION) behind it where there are several");
  const std::size_t plus = text.find(" + ");
  const std::string first = text.substr(0, plus);
  const std::size_t end = first.find(" (");
  try {
    const std::string word = first.substr(0, end), behind = end == std::string::npos ? "" : first.substr(end);
    if (word.starts_with('w')) return short_form(parse_weight_scheme(word)) + behind;  // no recipe begins like this
    const std::string weights =
        plus == std::string::npos ? "" : " + " + short_form(parse_weight_scheme(text.substr(plus + 3)));
    return short_form(parse_recipe(word)) + behind + weights;
  } catch (const Error& error) {
    table.refuse(key, fmt::format("is '{}': {}", shortened(text), error.what()));
  }
}

/// `prompt` and `judge-from`: with the same defaults as kvq-eval perplexity has for all cells together.
void read_span(const TomlTable& table, ExperimentConfig& config) {
  bool needed = false;
  for (const CellConfig& cell : config.cells) {
    for (const Recipe& recipe : cell.recipes) needed |= chooses_at_prompt_end(recipe.eviction.rule);
  }
  if (table.integer("prompt") && !needed)
    table.refuse("prompt",
                 "is for recipes that evict at a prompt's end (evict=snapkv, evict=pyramidkv); no cell has one");
  if (needed) config.prompt = whole(table, "prompt", config.seqlen / 2, 1);
  config.judge_from = whole(table, "judge-from", config.prompt, 0);
  if (config.prompt >= config.seqlen)
    table.refuse("prompt", fmt::format("is {}, which leaves nothing of windows of {}", config.prompt, config.seqlen));
  if (config.judge_from > config.seqlen - 2)
    table.refuse("judge-from", fmt::format("is {}; windows of {} tokens have predictions 0 to {}", config.judge_from,
                                           config.seqlen, config.seqlen - 2));
}

}  // namespace

void check_key(const std::optional<TomlTable>& table, const std::string& key, const std::string& lead,
               const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (!table || exit_code(error.kind()) != 2) throw;
    std::string problem = error.what();
    if (const std::string option = "--" + key.substr(key.rfind('.') + 1) + " "; problem.starts_with(option))
      problem.erase(0, option.size());
    // What else it says of options is meant for the tools that the experiment runs; here they are keys.
    for (const auto& [said, meant] : {std::pair("kvq-fisher --", "--"),
                                      {"--metric query, which puts ", ""},
                                      {" here, or calibrate", ", or calibrate"},
                                      {"--metrics", "metrics"},
                                      {"--seqlen", "seqlen"},
                                      {"--query-heads", "query-heads"},
                                      {"--forward-only", "forward-only"}}) {
      for (std::size_t at = 0; (at = problem.find(said)) != std::string::npos;)
        problem.replace(at, std::string_view(said).size(), meant);
    }
    table->refuse(key, lead + " " + problem);
  }
}

ExperimentConfig read_experiment(const std::filesystem::path& path) {
  const TomlTable table = TomlTable::read(path);
  ExperimentConfig config;
  config.table = table;
  config.title = needed_text(table, "title", "what the report is called");
  config.question = needed_text(table, "question", "what the experiment asks");
  config.seqlen = whole(table, "seqlen", config.seqlen, 2);
  config.windows = whole(table, "windows", config.windows, 1);
  std::set<std::string> names;
  const std::vector<TomlTable> calibrations = table.tables("calibration");
  for (const TomlTable& calibration : calibrations) {
    config.calibrations.push_back(read_calibration(calibration));
    const std::string& name = config.calibrations.back().name;
    if (calibrations.size() > 1 && name.empty())
      calibration.refuse("name", "is missing: several calibrations are told apart by it");
    if (!names.insert(name).second)
      calibration.refuse("name", fmt::format("'{}' stands for two calibrations", shortened(name)));
  }
  if (config.calibrations.empty()) config.calibrations.emplace_back();
  for (const TomlTable& cell : table.tables("cell")) config.cells.push_back(read_cell(cell, path.parent_path(), names));
  if (config.cells.empty()) table.refuse("cell", "is missing: [[cell]] tables say what is judged");
  read_span(table, config);
  config.retrievals = read_retrievals(table);
  for (const CalibrationConfig& calibration : config.calibrations) {
    if (calibration.query_heads == "joint" && !calibration.forward_only) continue;
    const std::string why =
        calibration.forward_only
            ? "is forward-only: gradients of weights need a backward pass"
            : fmt::format("has query-heads {}: a weight's gradient is one number", calibration.query_heads);
    for (const CellConfig& cell : config.cells) {
      if (cell.uses(calibration.name) && !cell.weights.empty())
        table.refuse("cell", fmt::format("has weights with calibration '{}', which {}", calibration.name, why));
    }
  }
  const std::set<std::string> known = cache_names(config);
  for (const TomlTable& claim : table.tables("claim")) {
    config.claims.push_back(
        {needed_text(claim, "statement", "what is claimed"), cache_name(claim, "better"), cache_name(claim, "worse")});
    claim.reject_unknown();
    for (const std::string& name : {config.claims.back().better, config.claims.back().worse}) {
      if (!known.contains(name))
        claim.refuse(name == config.claims.back().better ? "better" : "worse",
                     fmt::format("is '{}', which no cell makes", shortened(name)));
    }
  }
  table.reject_unknown();
  return config;
}

}  // namespace kvq::apps
