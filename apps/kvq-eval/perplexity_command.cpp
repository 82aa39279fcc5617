#include <cmath>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/inputs.h"
#include "kvq-eval/parts.h"
#include "kvq-eval/report_folder.h"

#include <kvq/core/error.h>
#include <kvq/core/fingerprint.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>
#include <kvq/eval/plan.h>
#include <kvq/eval/report.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

namespace {

struct PerplexityOptions {
  InputOptions inputs;
  std::string text;
  std::int64_t seqlen = 2048, max_windows = 0, prompt = 0, judge_from = 0;
  bool has_judge_from = false;
  double max_kl = 0.1;
  PartOptions parts;
  std::filesystem::path output;
};

/// --prompt-tokens and --judge-from, or what is usual for the quantizers.
JudgedSpan judged_span(const PerplexityOptions& options, const Inputs& inputs, Log& log) {
  JudgedSpan span = usual_span(inputs.quantizers, options.seqlen);
  if (options.prompt > 0) {
    if (span.prompt == 0)
      fail(ErrorKind::Usage,
           "--prompt-tokens is for recipes that evict at a prompt's end (evict=snapkv, evict=pyramidkv); no "
           "--quantizer and no --recipe is one");
    if (options.prompt > options.seqlen - 2)
      fail(ErrorKind::Usage,
           fmt::format("--prompt-tokens {}: must leave two tokens of --seqlen {}, one to read behind the "
                       "prompt and one to predict",
                       options.prompt, options.seqlen));
    span = {options.prompt, options.prompt};
  }
  if (options.has_judge_from) span.from = options.judge_from;
  if (span.from > options.seqlen - 2)
    fail(ErrorKind::Usage, fmt::format("--judge-from {}: windows of {} tokens have predictions 0 to {}", span.from,
                                       options.seqlen, options.seqlen - 2));
  if (span.prompt > 0 && span.from < span.prompt) {
    log.warning(
        fmt::format("--judge-from {}: the first {} judged see the whole prompt also where "
                    "tokens are evicted at its end; such rows look better than what eviction costs",
                    span.from, plural(span.prompt - span.from, "prediction")));
  }
  if (span.prompt > 0)
    log.info(fmt::format("the first {} of each window are the prompt", plural(span.prompt, "token")));
  if (span.from > 0)
    log.info(fmt::format("judged are predictions that follow the first {} of each window, for all caches",
                         plural(span.from, "token")));
  return span;
}

/// A share of the tokens that is less than a rule needs is not what is kept.
void warn_of_budgets(const PerplexityOptions& options, const Inputs& inputs, const JudgedSpan& span, Log& log) {
  for (const NamedQuantizer& named : inputs.quantizers) {
    if (!named.quantizer || named.quantizer->recipe.eviction.share == 0.0) continue;
    const EvictionRecipe& eviction = named.quantizer->recipe.eviction;
    const std::int64_t length = chooses_at_prompt_end(eviction.rule) ? span.prompt : options.seqlen;
    const std::int64_t kept = eviction_budget(eviction, length);
    if (static_cast<double>(kept) < eviction.share * static_cast<double>(length) + 1) continue;
    log.warning(fmt::format("'{}' keeps {} of {}, more than its budget: the rule needs so many", named.name, kept,
                            plural(length, "token")));
  }
}

/// Judging on text that a quantizer was made from flatters it.
void warn_of_overlap(const Inputs& inputs, const std::vector<Window>& windows, Log& log) {
  std::vector<std::int32_t> ids;
  for (const Window& window : windows) ids.insert(ids.end(), window.ids.begin(), window.ids.end());
  const std::vector<std::uint64_t> text = fingerprints(ids);
  for (std::size_t index = 0; index < inputs.quantizers.size(); ++index) {
    const double share = overlap(text, inputs.fingerprints[index]);
    if (share <= 0.01) continue;
    log.warning(
        fmt::format("{:.0f} % of the evaluated text stands in the calibration text of '{}': its result is too good",
                    100 * share, inputs.quantizers[index].name));
  }
}

void print_plan(const PerplexityOptions& options, const Inputs& inputs, const std::vector<Window>& windows, bool json) {
  const auto caches = static_cast<std::int64_t>(inputs.quantizers.size()) + 1;
  const PerplexityPlan plan =
      plan_perplexity(inputs.model->config(), parse_dtype(options.inputs.dtype), options.seqlen,
                      static_cast<std::int64_t>(windows.size()), caches,
                      static_cast<std::int64_t>(options.inputs.weights.size()) + 1, inputs.model->device());
  if (json) {
    print_result(nlohmann::ordered_json({{"windows", windows.size()},
                                         {"seqlen", options.seqlen},
                                         {"caches", caches},
                                         {"memory_bytes", plan.peak_memory_bytes},
                                         {"device_memory_bytes", plan.device_memory_bytes},
                                         {"seconds", std::round(plan.seconds)}})
                     .dump(2));
  } else {
    print_result(
        fmt::format("windows   {} of {}\ncaches    {}, the unquantized one included\n"
                    "memory    about {}\ntime      about {}\n",
                    windows.size(), plural(options.seqlen, "token"), caches,
                    human_memory(plan.peak_memory_bytes, plan.device_memory_bytes), human_seconds(plan.seconds)));
  }
}

void run(const Tool& tool, const PerplexityOptions& options, RunContext& context) {
  open_device(options.inputs);
  const TextArgument argument = TextArgument::parse(options.text);
  const TextFile file = read_text(argument);
  std::unique_ptr<ReportFolder> folder;
  if (!options.output.empty() && !tool.common().dry_run) {
    folder = std::make_unique<ReportFolder>(options.output, tool.common().force);
  }
  Inputs inputs = load_inputs(options.inputs, context);
  select_parts(options.parts, options.inputs, inputs);
  const JudgedSpan span = judged_span(options, inputs, context.log);
  warn_of_budgets(options, inputs, span, context.log);
  const std::vector<TokenStream> streams = {tokenize(*inputs.tokenizer, file)};
  const std::vector<Window> windows =
      sequential_windows(streams, options.seqlen, inputs.prepend_bos, inputs.bos(), options.max_windows);
  const auto tokens = static_cast<std::int64_t>(streams[0].ids.size());
  const std::int64_t text_per_window = options.seqlen - (inputs.prepend_bos ? 1 : 0);
  const std::int64_t used = static_cast<std::int64_t>(windows.size()) * text_per_window;
  context.log.info(fmt::format("{} of {} from {} of text; {} not used", plural(windows.size(), "window"),
                               plural(options.seqlen, "token"), plural(tokens, "token"),
                               plural(tokens - used, "token")));
  warn_beyond_context(*inputs.model, "--seqlen", options.seqlen, context.log);
  warn_of_overlap(inputs, windows, context.log);
  if (tool.common().dry_run) return print_plan(options, inputs, windows, tool.common().json);

  std::unique_ptr<WindowJournal> journal;
  if (folder) {
    RunIdentity identity = run_identity(tool, options.inputs, inputs, context.threads, {"--max-windows", "--max-kl"});
    identity.entries.emplace_back("text", streams[0].text_sha256);
    journal = std::make_unique<WindowJournal>(folder->journal(), identity, tool.common().force);
  }
  const PerplexityReport report =
      evaluate_perplexity(*inputs.model, windows, inputs.quantizers, journal.get(), context, span);
  ReportDocument document;
  document.max_kl = options.max_kl;
  document.evaluations.push_back({report_subject(tool, options.inputs, inputs), report});
  ReportSubject& subject = document.evaluations.front().subject;
  subject.text = argument.path.filename().string();
  subject.text_sha256 = streams[0].text_sha256;
  subject.text_tokens = tokens;
  publish(folder.get(), journal.get(), document,
          tool.common().json ? document_json(document)
                             : to_text(perplexity_table(report)) + "\n" + recommendation(report, options.max_kl));
}

}  // namespace

Command perplexity_command(Tool& tool) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command =
      tool.app().add_subcommand("perplexity", "Perplexity, KL divergence and top-1 agreement, side by side");
  add_input_options(*command, options->inputs);
  command->add_option("--text", options->text, "text to judge on: UTF-8, plain or JSONL")->required();
  command->add_option("--seqlen", options->seqlen, "tokens per window")
      ->check(whole_number(2, 1 << 30))
      ->capture_default_str();
  command->add_option("--max-windows", options->max_windows, "at most so many windows (default: all)")
      ->check(whole_number(1, std::uint64_t{1} << 40));
  command
      ->add_option("--max-kl", options->max_kl,
                   "recommend the cheapest cache whose mean KL divergence is at most this, in nats")
      ->check(real_number(0, 1e9, "a divergence in nats"))
      ->capture_default_str();
  command
      ->add_option("--prompt-tokens", options->prompt,
                   "tokens of each window that are the prompt, for recipes that evict at its end (default: half)")
      ->check(whole_number(1, 1 << 30));
  CLI::Option* judge_from =
      command
          ->add_option("--judge-from", options->judge_from,
                       "judge only what tokens from this position on predict, for all caches alike (default: 0, or "
                       "--prompt-tokens where a recipe evicts at the prompt's end)")
          ->check(whole_number(0, 1 << 30));
  add_part_options(*command, options->parts);
  command->add_option("-o,--output", options->output,
                      "folder for report.json, .md, .html and .csv; an interrupted run resumes there");
  tool.add_common(*command, {});
  return {command, [&tool, options, judge_from](RunContext& context) {
            options->has_judge_from = judge_from->count() > 0;
            run(tool, *options, context);
          }};
}

}  // namespace kvq::apps
