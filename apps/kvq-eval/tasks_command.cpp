#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/generation_plan.h"
#include "kvq-eval/inputs.h"
#include "kvq-eval/report_folder.h"

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>
#include <kvq/eval/tasks.h>
#include <kvq/tasks/answer_score.h>
#include <kvq/tasks/ruler.h>
#include <kvq/tasks/task_file.h>

namespace kvq::apps {

namespace {

struct TasksCommandOptions {
  InputOptions inputs;
  std::vector<std::string> ruler;
  std::vector<std::int64_t> lengths = {1024, 2048};
  int samples = 10;
  std::uint64_t seed = 0;
  std::filesystem::path file;
  std::string form = "{context}\n\nQuestion: {question}\n", lead = "Answer:", metric;
  int new_tokens = 32;
  std::int64_t max_length = 0;
  std::string prompt = "raw";
  std::filesystem::path output;
};

/// Options of the source that was not chosen would be ignored.
void check_source(const CLI::App& command) {
  const bool ruler = command.count("--ruler") > 0, file = command.count("--tasks") > 0;
  if (ruler == file) fail(ErrorKind::Usage, "give either --ruler (tasks made from a seed) or --tasks (a file of them)");
  const std::vector<std::string> foreign =
      ruler ? std::vector<std::string>{"--form", "--lead", "--metric", "--new-tokens", "--max-length"}
            : std::vector<std::string>{"--lengths", "--samples", "--seed"};
  for (const std::string& option : foreign) {
    if (command.count(option) > 0)
      fail(ErrorKind::Usage, fmt::format("{} goes with {} only", option, ruler ? "--tasks" : "--ruler"));
  }
}

std::vector<Task> file_tasks(const TasksCommandOptions& options) {
  TaskFileOptions file{options.form, options.lead, std::nullopt, options.new_tokens};
  if (!options.metric.empty()) file.metric = find_metric(options.metric);
  return read_task_file(options.file, file);
}

std::vector<GenerationJob> jobs_of(const std::vector<Task>& tasks, const TasksCommandOptions& options,
                                   const Inputs& inputs) {
  std::map<std::pair<std::int64_t, int>, std::int64_t> counts;
  for (const Task& task : tasks) {
    auto length =
        static_cast<std::int64_t>(task.ids(*inputs.tokenizer, options.prompt == "chat", inputs.prepend_bos).size());
    if (options.max_length > 0) length = std::min(length, options.max_length);
    ++counts[{length, task.new_tokens}];
  }
  std::vector<GenerationJob> jobs;
  for (const auto& [shape, prompts] : counts) jobs.push_back({prompts, shape.first, shape.second});
  return jobs;
}

void run(const Tool& tool, const CLI::App& command, const TasksCommandOptions& options, RunContext& context) {
  check_source(command);
  refuse_repeats("--lengths", options.lengths);
  open_device(options.inputs);
  std::vector<Task> tasks;
  if (!options.file.empty()) tasks = file_tasks(options);  // before a large model is opened
  std::unique_ptr<ReportFolder> folder;
  if (!options.output.empty() && !tool.common().dry_run)
    folder = std::make_unique<ReportFolder>(options.output, tool.common().force);
  const Inputs inputs = load_inputs(options.inputs, context);
  if (options.file.empty()) {
    const RulerOptions ruler{options.ruler, options.lengths, options.samples, options.seed, options.prompt == "chat"};
    tasks = make_ruler_tasks(ruler, *inputs.tokenizer, inputs.prepend_bos);
  }

  const std::vector<GenerationJob> jobs = jobs_of(tasks, options, inputs);
  std::vector<std::int64_t> lengths;
  for (const GenerationJob& job : jobs) lengths.push_back(job.length);
  warn_beyond_context(*inputs.model, "a prompt of", *std::max_element(lengths.begin(), lengths.end()), context.log);
  const auto caches = static_cast<std::int64_t>(inputs.quantizers.size()) + 1;
  if (tool.common().dry_run) {
    return print_generation_plan(
        plan_generation(inputs.model->config(), parse_dtype(options.inputs.dtype), jobs, caches,
                        static_cast<std::int64_t>(options.inputs.weights.size()) + 1, inputs.model->device()),
        lengths, caches, tool.common().json);
  }
  TaskEvaluation evaluation{report_subject(tool, options.inputs, inputs), {}};
  if (!options.file.empty()) {
    evaluation.subject.text = options.file.filename().string();
    evaluation.subject.text_sha256 = sha256_of_file(options.file);
  }
  std::unique_ptr<TaskJournal> journal;
  if (folder) {
    RunIdentity identity = run_identity(tool, options.inputs, inputs, context.threads, {});
    identity.entries.emplace_back("tasks", evaluation.subject.text_sha256);
    journal = std::make_unique<TaskJournal>(folder->journal(), identity, tool.common().force);
  }
  evaluation.report = evaluate_tasks(*inputs.model, *inputs.tokenizer, inputs.prepend_bos, inputs.quantizers, tasks,
                                     {options.prompt == "chat", options.max_length}, journal.get(), context);
  const auto cut = std::count_if(evaluation.report.prompts.begin(), evaluation.report.prompts.end(),
                                 [](const TaskPrompt& prompt) { return prompt.cut; });
  if (cut > 0)
    context.log.info(
        fmt::format("{} longer than --max-length {} lost their middle", plural(cut, "prompt"), options.max_length));
  ReportDocument document;
  document.tasks = std::move(evaluation);
  publish(folder.get(), journal.get(), document,
          tool.common().json ? document_json(document) : to_text(task_table(document.tasks->report)));
}

void add_ruler_options(CLI::App& command, TasksCommandOptions& options) {
  std::vector<std::string> known = ruler_names();
  known.emplace_back("all");
  command.add_option("--ruler", options.ruler, "synthetic tasks after RULER, separated by commas, or all")
      ->delimiter(',')
      ->check(CLI::IsMember(known));
  command.add_option("--lengths", options.lengths, "prompt lengths in tokens, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--samples", options.samples, "tasks of each kind and length")
      ->check(whole_number(1, 10'000))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "seed of the synthetic tasks")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
}

void add_file_options(CLI::App& command, TasksCommandOptions& options) {
  command.add_option("--tasks", options.file, "JSON Lines with context, question (or input), answers, metric");
  command.add_option("--form", options.form, "of a prompt: where {context} and {question} go")->capture_default_str();
  command.add_option("--lead", options.lead, "begins the answer of a raw prompt")->capture_default_str();
  command.add_option("--metric", options.metric, "for tasks that name none")->check(CLI::IsMember(metric_names()));
  command.add_option("--new-tokens", options.new_tokens, "generated, for tasks that say nothing else")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command.add_option("--max-length", options.max_length, "longer prompts lose their middle; 0: none does")
      ->check(whole_number(0, 1 << 24))
      ->capture_default_str();
}

}  // namespace

Command tasks_command(Tool& tool) {
  auto options = std::make_shared<TasksCommandOptions>();
  CLI::App* command =
      tool.app().add_subcommand("tasks", "Questions about long contexts: made after RULER, or from a file");
  add_input_options(*command, options->inputs);
  add_ruler_options(*command, *options);
  add_file_options(*command, *options);
  command->add_option("--prompt", options->prompt, "raw, or chat: inside the model's chat template")
      ->check(CLI::IsMember({"raw", "chat"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output,
                      "folder for report.json, .md, .html and .csv; an interrupted run resumes there");
  tool.add_common(*command, {});
  return {command, [&tool, command, options](RunContext& context) { run(tool, *command, *options, context); }};
}

}  // namespace kvq::apps
