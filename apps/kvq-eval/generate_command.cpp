#include <limits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/generation_plan.h"
#include "kvq-eval/inputs.h"

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/eval/plan.h>
#include <kvq/eval/side_by_side.h>
#include <kvq/tasks/task.h>
#include <kvq/text/corpus.h>
#include <kvq/text/utf8.h>

namespace kvq::apps {

namespace {

constexpr const char* kPartingMark = "⟦≠⟧";

struct GenerateCommandOptions {
  InputOptions inputs;
  std::string prompt;
  std::filesystem::path prompt_file;
  bool chat = false;
  int new_tokens = 64;
};

std::string prompt_text(const CLI::App& command, const GenerateCommandOptions& options) {
  const bool given = command.count("--prompt") > 0, file = command.count("--prompt-file") > 0;
  if (given == file) fail(ErrorKind::Usage, "give either --prompt (a text) or --prompt-file (a file that holds one)");
  const std::string text = file ? read_utf8(options.prompt_file).text : options.prompt;
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string::npos)
    fail(ErrorKind::Usage, fmt::format("--prompt: byte {} is not UTF-8", bad));
  if (text.empty()) fail(ErrorKind::Usage, fmt::format("--prompt-file '{}' is empty", options.prompt_file.string()));
  return text;
}

/// As a terminal may show it: indented, control characters written out.
std::string for_people(const std::string& text) {
  std::string shown = "    ";
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    if (byte == '\n') {
      shown += "\n    ";
    } else if (byte == '\t') {
      shown += byte;
    } else if (code < 0x20 || code == 0x7f) {
      shown += fmt::format("\\x{:02x}", code);
    } else {
      shown += byte;
    }
  }
  return shown;
}

std::string comparison_text(const Tokenizer& tokenizer, const std::vector<Continuation>& texts) {
  std::string result;
  for (const Continuation& text : texts) {
    std::string head = fmt::format("{}: {}{}", text.name, plural(static_cast<std::int64_t>(text.ids.size()), "token"),
                                   text.ended ? ", ended" : "");
    if (text.parts_at) {
      head += fmt::format(", parts at token {} (KL there {:.3g}, mean until there {:.3g})", *text.parts_at + 1,
                          text.kl_at_parting, text.kl_mean);
    } else if (&text != &texts.front()) {
      head += fmt::format(", the same (mean KL {:.3g})", text.kl_mean);
    }
    result += head + "\n" + for_people(marked_text(tokenizer, text, kPartingMark)) + "\n\n";
  }
  return result + fmt::format(
                      "{} is where a text leaves the first one. An illustration, no measure: one flipped token "
                      "makes another text.",
                      kPartingMark);
}

nlohmann::ordered_json comparison_json(const Tool& tool, const GenerateCommandOptions& options, const Inputs& inputs,
                                       std::size_t prompt_tokens, const std::vector<Continuation>& texts) {
  const ReportSubject subject = report_subject(tool, options.inputs, inputs);
  nlohmann::ordered_json json = {{"model", subject.model},
                                 {"model_sha256", subject.model_sha256},
                                 {"tokenizer_sha256", subject.tokenizer_sha256},
                                 {"prompt_tokens", prompt_tokens},
                                 {"new_tokens", options.new_tokens},
                                 {"results", nlohmann::ordered_json::array()}};
  for (const Continuation& text : texts) {
    const bool first = &text == &texts.front();
    json["results"].push_back(
        {{"name", text.name},
         {"sha256", text.sha256},
         {"text", text.text},
         {"tokens", text.ids},
         {"ended", text.ended},
         {"parts_at", text.parts_at ? nlohmann::ordered_json(*text.parts_at) : nlohmann::ordered_json(nullptr)},
         {"kl_at_parting",
          text.parts_at ? nlohmann::ordered_json(text.kl_at_parting) : nlohmann::ordered_json(nullptr)},
         {"kl_mean", first ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text.kl_mean)}});
  }
  return json;
}

void run(const Tool& tool, const CLI::App& command, const GenerateCommandOptions& options, RunContext& context) {
  const std::string text = prompt_text(command, options);  // before a large model is opened
  open_device(options.inputs);
  const Inputs inputs = load_inputs(options.inputs, context);
  const std::vector<std::int32_t> prompt = prompt_ids(*inputs.tokenizer, text, "", options.chat, inputs.prepend_bos);
  if (prompt.empty()) fail(ErrorKind::Usage, "the prompt has no token");
  const auto length = static_cast<std::int64_t>(prompt.size());
  warn_beyond_context(*inputs.model, "prompt and --new-tokens:", length + options.new_tokens, context.log);
  if (tool.common().dry_run) {
    const auto caches = static_cast<std::int64_t>(inputs.quantizers.size()) + 1;
    return print_generation_plan(
        plan_generation(inputs.model->config(), parse_dtype(options.inputs.dtype), {{1, length, options.new_tokens}},
                        caches, static_cast<std::int64_t>(options.inputs.weights.size()) + 1, inputs.model->device()),
        {length}, caches, tool.common().json);
  }
  const std::vector<Continuation> texts =
      continue_side_by_side(*inputs.model, *inputs.tokenizer, prompt, inputs.quantizers, options.new_tokens, context);
  print_result(tool.common().json ? comparison_json(tool, options, inputs, prompt.size(), texts).dump(2)
                                  : comparison_text(*inputs.tokenizer, texts));
}

}  // namespace

Command generate_command(Tool& tool) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CLI::App* command =
      tool.app().add_subcommand("generate", "Greedy continuations of a prompt side by side, and where they part");
  add_input_options(*command, options->inputs);
  command->add_option("--prompt", options->prompt, "the text to continue");
  command->add_option("--prompt-file", options->prompt_file, "a UTF-8 file that holds it");
  command->add_flag("--chat", options->chat, "the prompt is a user's message inside the model's chat template");
  command->add_option("--new-tokens", options->new_tokens, "tokens to generate, at most")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  tool.add_common(*command, {.force = false});
  return {command, [&tool, command, options](RunContext& context) { run(tool, *command, *options, context); }};
}

}  // namespace kvq::apps
