#include "kvq-eval/experiment_plan.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/shortened.h>

namespace kvq::apps {

namespace {

/// Long enough that two pieces of one folder never share it.
constexpr std::size_t kKeyDigits = 20;

std::string key_of(const std::string& identity) {
  return sha256_of("kvq " KVQ_VERSION "\n" + identity).substr(0, kKeyDigits);
}

std::vector<LabelledText> chosen(const std::vector<std::string>& labels, const std::vector<LabelledText>& texts,
                                 const char* flag, const std::optional<TomlTable>& table) {
  if (labels.empty()) return texts;
  std::vector<LabelledText> result;
  for (const std::string& label : labels) {
    const auto found =
        std::find_if(texts.begin(), texts.end(), [&](const LabelledText& text) { return text.label == label; });
    if (found == texts.end()) {
      std::string known;
      for (const LabelledText& text : texts) known += (known.empty() ? "" : ", ") + text.label;
      check_key(table, "texts", fmt::format("holds '{}':", shortened(label)), [&] {
        fail(ErrorKind::Usage, fmt::format("the experiment needs a text '{0}': {1} {0}=PATH; given: {2}",
                                           shortened(label), flag, known.empty() ? "none" : known));
      });
    }
    result.push_back(*found);
  }
  return result;
}

PlannedCalibration plan_calibration(const CalibrationConfig& config, const ExperimentInputs& inputs) {
  PlannedCalibration calibration{
      config, chosen(config.texts, inputs.calibration_texts, "--calibration-text", config.table), ""};
  std::string identity =
      fmt::format("calibration\nmodel {}\ndtype {}\nbos {}\nsamples {}\nseqlen {}\nseed {}\n", inputs.model_sha256,
                  inputs.dtype, inputs.bos, config.samples, config.seqlen, config.seed);
  if (inputs.device != "cpu") identity += fmt::format("device {}\n", inputs.device);
  if (config.query_heads != "joint") identity += fmt::format("query heads {}\n", config.query_heads);
  if (config.forward_only) identity += "gradients none\n";
  if (config.metrics && !config.forward_only) identity += "metrics\n";  // forward-only has them anyway
  for (const LabelledText& text : calibration.texts) identity += fmt::format("text {} {}\n", text.label, text.sha256);
  calibration.key = key_of(identity);
  return calibration;
}

std::vector<PlannedRetrieval> plan_retrievals(const ExperimentConfig& config, const ExperimentInputs& inputs,
                                              const ExperimentPlan& plan, const std::filesystem::path& folder) {
  std::vector<PlannedRetrieval> list;
  std::set<std::filesystem::path> known;
  for (std::size_t question = 0; question < config.retrievals.size(); ++question) {
    const std::string asked = fmt::format("{}", fmt::join(retrieval_arguments(config.retrievals[question]), "\n"));
    for (const CellConfig& cell : config.cells) {
      if (!cell.only_layers.empty() || !cell.only_side.empty()) continue;
      for (std::size_t index = 0; index < plan.calibrations.size(); ++index) {
        const PlannedCalibration& calibration = plan.calibrations[index];
        if (!cell.uses(calibration.config.name)) continue;
        for (const Recipe& recipe : cell.recipes) {
          if (recipe.is_oracle()) continue;  // no caches
          PlannedRetrieval planned{question, recipe, index, {}, {}};
          if (recipe.quantized) planned.quantizer = folder / "quantizers" / calibration.key / (slug(recipe) + ".h5");
          planned.result = folder / "cells" /
                           (key_of(fmt::format("retrieval\ncalibration {}\n{}\ncache {}\n{}\n", calibration.key,
                                               recipe_to_toml(recipe), inputs.cache, asked)) +
                            ".json");
          if (known.insert(planned.result).second) list.push_back(std::move(planned));
        }
      }
    }
  }
  return list;
}

}  // namespace

std::vector<std::string> retrieval_arguments(const RetrievalConfig& config) {
  std::vector<std::string> arguments;
  if (config.is_grid()) {
    arguments = {"passkey", "--depths", std::to_string(config.depths), "--trials", std::to_string(config.trials)};
  } else {
    arguments = {"tasks", "--ruler", fmt::format("{}", fmt::join(config.ruler, ",")), "--samples",
                 std::to_string(config.samples)};
  }
  arguments.insert(arguments.end(), {"--lengths", fmt::format("{}", fmt::join(config.lengths, ",")), "--seed",
                                     std::to_string(config.seed), "--prompt", config.prompt});
  return arguments;
}

std::filesystem::path calibration_file(const std::filesystem::path& folder, const PlannedCalibration& calibration) {
  return folder / "calibrations" / (calibration.key + ".h5");
}

std::filesystem::path weight_fisher_file(const std::filesystem::path& folder, const PlannedCalibration& calibration) {
  return folder / "calibrations" / (calibration.key + "-weights.h5");
}

ExperimentPlan plan_experiment(const ExperimentConfig& config, const ExperimentInputs& inputs,
                               const std::filesystem::path& folder) {
  ExperimentPlan plan;
  for (const CalibrationConfig& calibration : config.calibrations) {
    plan.calibrations.push_back(plan_calibration(calibration, inputs));
    for (std::size_t earlier = 0; earlier + 1 < plan.calibrations.size(); ++earlier) {
      if (plan.calibrations[earlier].key != plan.calibrations.back().key) continue;
      const std::string& other = plan.calibrations[earlier].config.name;
      if (inputs.samples_given) {
        fail(ErrorKind::Usage,
             fmt::format("--samples: '{}' and '{}' differ by their samples only", other, calibration.name));
      }
      check_key(calibration.table, "name", "is wrong:", [&] {
        fail(ErrorKind::Usage, fmt::format("'{}' is the same as '{}': same texts, samples, window length and seed",
                                           calibration.name, other));
      });
    }
  }
  std::set<std::filesystem::path> known;
  for (const CellConfig& cell : config.cells) {
    const std::vector<LabelledText> texts = chosen(cell.texts, inputs.texts, "--text", cell.table);
    for (const LabelledText& text : texts) {
      const auto text_index =
          static_cast<std::size_t>(std::find_if(inputs.texts.begin(), inputs.texts.end(),
                                                [&](const LabelledText& other) { return other.label == text.label; }) -
                                   inputs.texts.begin());
      for (std::size_t index = 0; index < plan.calibrations.size(); ++index) {
        const PlannedCalibration& calibration = plan.calibrations[index];
        if (!cell.uses(calibration.config.name)) continue;
        const auto add = [&](const Recipe& recipe, const std::optional<WeightScheme>& weights) {
          PlannedCell planned{recipe,           weights,        cell.weights, index, text_index,
                              cell.only_layers, cell.only_side, {},           {},    {}};
          if ((recipe.quantized || weights) && calibration.texts.empty())
            fail(ErrorKind::Usage, "--calibration-text is missing: the text to calibrate on");
          if (recipe.quantized) planned.quantizer = folder / "quantizers" / calibration.key / (slug(recipe) + ".h5");
          if (weights) planned.weights_file = folder / "weights" / calibration.key / (slug(*weights) + ".h5");
          std::string identity =
              fmt::format("cell\ncalibration {}\n{}\ntext {}\nseqlen {}\nwindows {}\ncache {}\nlayers {}\nside {}\n",
                          calibration.key, recipe.is_baseline() ? "none" : recipe_to_toml(recipe), text.sha256,
                          config.seqlen, config.windows, inputs.cache, cell.only_layers, cell.only_side);
          // Where all of a window is judged, nothing is said of it.
          if (chooses_at_prompt_end(recipe.eviction.rule)) identity += fmt::format("prompt {}\n", config.prompt);
          if (config.judge_from > 0) identity += fmt::format("judge-from {}\n", config.judge_from);
          if (weights) identity += fmt::format("weights {}\n", short_form(*weights));
          planned.result = folder / "cells" / (key_of(identity) + ".json");
          if (known.insert(planned.result).second) plan.cells.push_back(std::move(planned));
        };
        for (const WeightScheme& weights : cell.weights) add(parse_recipe("none"), weights);
        for (const Recipe& recipe : cell.recipes) {  // what shares a quantizer is together: eval_batches()
          add(recipe, std::nullopt);
          for (const WeightScheme& weights : cell.weights) add(recipe, weights);
        }
      }
    }
  }
  plan.retrievals = plan_retrievals(config, inputs, plan, folder);
  return plan;
}

}  // namespace kvq::apps
