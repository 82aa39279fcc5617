#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/generation_plan.h"
#include "kvq-eval/inputs.h"
#include "kvq-eval/report_folder.h"

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/eval/plan.h>
#include <kvq/eval/report.h>

namespace kvq::apps {

namespace {

struct PasskeyCommandOptions {
  InputOptions inputs;
  std::vector<std::int64_t> lengths = {1024, 2048};
  int depths = 5;
  int trials = 1;
  std::string prompt = "raw";
  std::uint64_t seed = 0;
  std::filesystem::path output;
};

/// `count` depths spread over the prompt, away from its very ends: 5 gives 5, 27.5, 50, 72.5 and 95 %.
std::vector<double> spread_depths(int count) {
  if (count == 1) return {0.5};
  std::vector<double> depths;
  for (int index = 0; index < count; ++index) depths.push_back(0.05 + 0.9 * index / (count - 1));
  return depths;
}

void run(const Tool& tool, const PasskeyCommandOptions& options, RunContext& context) {
  refuse_repeats("--lengths", options.lengths);
  open_device(options.inputs);
  std::unique_ptr<ReportFolder> folder;
  if (!options.output.empty() && !tool.common().dry_run)
    folder = std::make_unique<ReportFolder>(options.output, tool.common().force);
  const Inputs inputs = load_inputs(options.inputs, context);
  const PasskeyOptions passkey{options.lengths, spread_depths(options.depths), options.trials, options.prompt == "chat",
                               options.seed};
  const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  warn_beyond_context(*inputs.model, "--lengths", longest, context.log);
  for (const std::int64_t length : options.lengths) {  // a length that no prompt fits is an error before the first run
    make_passkey_prompt(*inputs.tokenizer, length, 0.5, passkey.chat, inputs.prepend_bos, 0);
  }
  const auto caches = static_cast<std::int64_t>(inputs.quantizers.size()) + 1;
  if (tool.common().dry_run) {
    return print_generation_plan(
        plan_passkey(inputs.model->config(), parse_dtype(options.inputs.dtype), passkey, caches,
                     static_cast<std::int64_t>(options.inputs.weights.size()) + 1, inputs.model->device()),
        options.lengths, caches, tool.common().json);
  }
  std::unique_ptr<TaskJournal> journal;
  if (folder)
    journal = std::make_unique<TaskJournal>(
        folder->journal(), run_identity(tool, options.inputs, inputs, context.threads, {}), tool.common().force);
  const std::vector<PasskeyResult> results = evaluate_passkey(*inputs.model, *inputs.tokenizer, inputs.prepend_bos,
                                                              inputs.quantizers, passkey, journal.get(), context);
  ReportDocument document;
  document.passkey = {report_subject(tool, options.inputs, inputs), results};
  publish(folder.get(), journal.get(), document,
          tool.common().json ? document_json(document) : to_text(passkey_table(results)));
}

}  // namespace

Command passkey_command(Tool& tool) {
  auto options = std::make_shared<PasskeyCommandOptions>();
  CLI::App* command = tool.app().add_subcommand("passkey", "Retrieval of a number hidden in filler text");
  add_input_options(*command, options->inputs);
  command->add_option("--lengths", options->lengths, "prompt lengths in tokens, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--depths", options->depths, "number of depths at which the key is hidden")
      ->check(whole_number(1, 100))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "prompts, each with its own key, per length and depth")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  command->add_option("--prompt", options->prompt, "raw, or chat: inside the model's chat template")
      ->check(CLI::IsMember({"raw", "chat"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the keys")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  command->add_option("-o,--output", options->output,
                      "folder for report.json, .md, .html and .csv; an interrupted run resumes there");
  tool.add_common(*command, {});
  return {command, [&tool, options](RunContext& context) { run(tool, *options, context); }};
}

}  // namespace kvq::apps
