#include <map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/loaded_model.h"
#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/experiment_kept.h"
#include "kvq-eval/experiment_run.h"
#include "kvq-eval/parts.h"
#include "kvq-eval/report_folder.h"

#include <kvq/cache/cuda_plugin.h>
#include <kvq/cache/kv_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>
#include <kvq/core/rng.h>
#include <kvq/eval/passkey.h>
#include <kvq/fit/fit.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/tasks/ruler.h>
#include <kvq/tasks/task.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

namespace {

struct ExperimentOptions : ModelArguments {
  std::filesystem::path file, output;
  std::vector<std::string> calibration_text, text;
  std::string cache = "simulated";
  std::int64_t windows = 0, samples = 0;
  double max_kl = 0.1;
  bool discard_calibrations = false;
};

/// Judged texts are told apart by what they hold, so none may be there twice.
std::vector<LabelledText> read_texts(const std::vector<std::string>& arguments, const char* flag, bool judged) {
  std::vector<LabelledText> texts;
  for (const std::string& argument : arguments) {
    const TextArgument parsed = TextArgument::parse(argument);
    for (const LabelledText& other : texts) {
      if (other.label == parsed.domain)
        fail(ErrorKind::Usage, fmt::format("{} {}: the label '{}' is given twice", flag, argument, parsed.domain));
    }
    texts.push_back({parsed.domain, parsed.path, read_text(parsed).sha256});
    for (std::size_t other = 0; judged && other + 1 < texts.size(); ++other) {
      if (texts[other].sha256 == texts.back().sha256)
        fail(ErrorKind::Usage, fmt::format("{} {}: is the same text as '{}'", flag, argument, texts[other].label));
    }
  }
  return texts;
}

/// What a cell's cache or parts cannot be is said before hours of calibrating.
void check_cells(const ExperimentConfig& config, const ModelConfig& model, const std::string& cache) {
  for (const CellConfig& cell : config.cells) {
    check_key(cell.table, "only-layers", "is", [&] { check_layer_list(cell.only_layers, model.kv.layers); });
    check_key(cell.table, "recipes", "cannot be used:", [&] {
      for (const Recipe& recipe : cell.recipes) {
        check_local_layers(recipe, model.rope);
        if (recipe.quantized) check_shape(recipe, model.kv.kv_heads, model.kv.head_dim);
        for (const CalibrationConfig& calibration : config.calibrations) {
          if (recipe.quantized && cell.uses(calibration.name))
            check_contents(recipe, {calibration.query_heads, !calibration.forward_only,
                                    calibration.metrics || calibration.forward_only});
        }
      }
    });
    if (cache == "simulated") continue;
    for (const auto& [key, value] : {std::pair("only-layers", cell.only_layers), {"only-side", cell.only_side}}) {
      if (!value.empty())
        cell.table->refuse(key, fmt::format("needs --cache simulated: a {} cache holds all layers and sides", cache));
    }
    check_key(cell.table, "recipes", "cannot be used:", [&] {
      for (const Recipe& recipe : cell.recipes) {
        const std::string refusal = cache == "cuda" ? cuda_refusal(recipe) : packed_refusal(recipe);
        if (!refusal.empty()) fail(ErrorKind::Usage, refusal);
      }
    });
  }
}

/// A length that no prompt fits, too.
void check_questions(const ExperimentConfig& config, const LoadedModel& loaded) {
  for (const RetrievalConfig& asked : config.retrievals) {
    const bool chat = asked.prompt == "chat";
    check_key(asked.table, "prompt", "is 'chat':", [&] {
      if (chat) prompt_ids(*loaded.tokenizer, "a question", "", true, loaded.prepend_bos);
    });
    check_key(asked.table, "lengths", "holds", [&] {
      if (!asked.is_grid())
        make_ruler_tasks({asked.ruler, asked.lengths, asked.samples, asked.seed, chat}, *loaded.tokenizer,
                         loaded.prepend_bos);
      for (const std::int64_t length : asked.lengths) {
        if (asked.is_grid()) make_passkey_prompt(*loaded.tokenizer, length, 0.5, chat, loaded.prepend_bos, 0);
      }
    });
  }
}

/// Texts that are too short for a window, or for the sequences of a calibration.
void check_texts(const ExperimentConfig& config, const ExperimentInputs& inputs, const ExperimentPlan& plan,
                 const LoadedModel& loaded, bool samples_given) {
  const auto stream = [&](const LabelledText& text) {
    return tokenize(*loaded.tokenizer, read_text({text.label, text.path}));
  };
  for (const LabelledText& text : inputs.texts) {
    const TokenStream tokens = stream(text);
    check_key(config.table, "seqlen", fmt::format("is {}:", config.seqlen),
              [&] { sequential_windows({tokens}, config.seqlen, loaded.prepend_bos, loaded.bos(), 1); });
  }
  std::map<std::string, TokenStream> known;  // by path
  for (const PlannedCalibration& calibration : plan.calibrations) {
    std::vector<TokenStream> streams;
    for (const LabelledText& text : calibration.texts) {
      const auto [found, added] = known.try_emplace(text.path.string());
      if (added) found->second = stream(text);
      streams.push_back(found->second);
    }
    if (streams.empty()) continue;
    const CalibrationConfig& asked = calibration.config;
    // Without a [[calibration]] the file says nothing of it.
    const std::optional<TomlTable>& table = asked.table ? asked.table : config.table;
    const std::string prefix = asked.table ? "" : "calibration.";
    check_key(table, prefix + "seqlen", fmt::format("is {}:", asked.seqlen),
              [&] { sequential_windows(streams, asked.seqlen, loaded.prepend_bos, loaded.bos(), 1); });
    const auto draw = [&] {
      Rng rng(asked.seed);
      sampled_windows(streams, asked.seqlen, loaded.prepend_bos, loaded.bos(), asked.samples, rng);
    };
    if (samples_given) {  // on the command line
      draw();
    } else {
      check_key(table, prefix + "samples", "is", draw);
    }
  }
}

void print_remaining(const Remaining& remaining, bool json) {
  if (json) {
    print_result(nlohmann::ordered_json({{"cells", remaining.cells},
                                         {"finished_cells", remaining.finished_cells},
                                         {"commands", remaining.commands}})
                     .dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  std::string text =
      fmt::format("{}, {} finished; still to be run:\n", plural(remaining.cells, "cell"), remaining.finished_cells);
  for (const std::string& command : remaining.commands) text += "    " + command + "\n";
  print_result(text);
}

void run(const Tool& tool, const ExperimentOptions& options, RunContext& context) {
  open_device(options);
  if (options.cache == "cuda") require_cuda_cache();
  ExperimentConfig config = read_experiment(options.file);
  if (options.windows > 0) config.windows = options.windows;
  if (options.samples > 0) {
    for (CalibrationConfig& calibration : config.calibrations) calibration.samples = options.samples;
  }
  ExperimentInputs inputs;
  inputs.model = options.model;
  inputs.dtype = options.dtype;
  inputs.bos = options.bos;
  inputs.device = options.device;
  inputs.cache = options.cache;
  inputs.samples_given = options.samples > 0;
  inputs.calibration_texts = read_texts(options.calibration_text, "--calibration-text", false);
  inputs.texts = read_texts(options.text, "--text", true);
  ExperimentPlan plan;
  {
    const LoadedModel loaded = open_model(options, context);  // and closed again: the tools open it themselves
    inputs.model_sha256 = loaded.model->sha256();
    check_cells(config, loaded.model->config(), options.cache);
    check_questions(config, loaded);
    plan = plan_experiment(config, inputs, options.output);
    check_texts(config, inputs, plan, loaded, options.samples > 0);
  }
  const ExperimentRun experiment{
      config, inputs, plan, options.output, tool.common().quiet, options.discard_calibrations};
  if (tool.common().dry_run) return print_remaining(remaining_steps(experiment), tool.common().json);
  if (options.output.empty()) fail(ErrorKind::Usage, "-o is missing: the folder for results and reports");
  std::error_code ignored;
  if (std::filesystem::exists(options.output / "report.json", ignored) &&
      !std::filesystem::exists(options.output / "cells", ignored)) {
    fail(ErrorKind::Usage, fmt::format("output '{}' holds a report that no experiment made; another folder is needed",
                                       options.output.string()));
  }
  // The report is made anew whenever a cell was: what counts are the cells, which are never replaced.
  ReportFolder folder(options.output, true);
  const ExperimentLock lock(options.output);
  ReportDocument document = run_experiment(experiment, context);
  document.max_kl = options.max_kl;
  document.commands.insert(document.commands.begin(), tool.command_line());
  folder.write(document);
  if (tool.common().json) return print_result(document_json(document));
  std::string text;
  for (const Evaluation& evaluation : document.evaluations) {
    if (document.evaluations.size() > 1)
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", evaluation.subject.text);
    text += to_text(perplexity_table(evaluation.report));
  }
  if (document.passkey) text += "\n" + to_text(passkey_table(document.passkey->results));
  if (document.tasks) text += "\n" + to_text(task_table(document.tasks->report));
  if (!document.claims.empty()) text += "\n" + to_text(claims_table(document));
  print_result(text);
}

}  // namespace

Command experiment_command(Tool& tool) {
  auto options = std::make_shared<ExperimentOptions>();
  CLI::App* command =
      tool.app().add_subcommand("experiment", "Calibrates, fits and judges all cells of configs/experiments/NAME.toml");
  command->add_option("file", options->file, "the experiment: a TOML file")->required();
  add_model_options(*command, *options);
  add_device_option(*command, *options);
  command
      ->add_option("--calibration-text", options->calibration_text,
                   "text to calibrate on, [LABEL=]PATH; repeat for several")
      ->expected(1)
      ->allow_extra_args(false)  // the file of the experiment may stand behind it
      ->take_all();
  command->add_option("--text", options->text, "text to judge on, [LABEL=]PATH; repeat for several")
      ->required()
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--cache", options->cache, "how quantized caches are run: simulated, packed or cuda")
      ->check(CLI::IsMember(cache_kind_names()))
      ->capture_default_str();
  command->add_option("--windows", options->windows, "windows of each text, instead of the experiment's own number")
      ->check(whole_number(1, 1 << 30));
  command
      ->add_option("--samples", options->samples,
                   "sequences of every calibration, instead of the experiment's own numbers")
      ->check(whole_number(1, 1 << 30));
  command->add_flag("--discard-calibrations", options->discard_calibrations,
                    "remove calibration files, which are large, once their quantizers are made");
  command->add_option("--max-kl", options->max_kl, "mean KL, in nats, that the recommended recipe may cost")
      ->check(real_number(0, 1e9, "a divergence in nats"))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "folder for all results; what is there already is used");
  tool.add_common(*command, {.force = false});
  return {command, [&tool, options](RunContext& context) { run(tool, *options, context); }};
}

}  // namespace kvq::apps
