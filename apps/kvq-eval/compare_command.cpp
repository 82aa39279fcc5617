#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"
#include "kvq-eval/report_folder.h"

#include <kvq/eval/report_reader.h>

namespace kvq::apps {

namespace {

struct CompareOptions {
  std::vector<std::filesystem::path> reports;
  double max_kl = 0.1;
  std::filesystem::path output;
};

void run(const Tool& tool, const CompareOptions& options, RunContext& context) {
  std::unique_ptr<ReportFolder> folder;
  if (!options.output.empty()) {
    for (const char* name : {"report.json", "report.md", "report.html", "report.csv", "passkey.csv"})
      tool.check_output(options.output / name);
    folder = std::make_unique<ReportFolder>(options.output, tool.common().force);
  }
  std::vector<NamedReport> reports;
  for (const auto& path : options.reports) reports.push_back({path.string(), read_report(path)});
  ReportDocument document = merge_reports(reports, true, context.log);
  document.max_kl = options.max_kl;
  document.commands.push_back(tool.command_line());
  if (folder) folder->write(document);
  if (tool.common().json) return print_result(document_json(document));
  std::string text;
  for (const Evaluation& evaluation : document.evaluations) {
    text += to_text(perplexity_table(evaluation.report)) + "\n";
    text += recommendation(evaluation.report, options.max_kl) + "\n";
  }
  if (document.passkey) text += (text.empty() ? "" : "\n") + to_text(passkey_table(document.passkey->results));
  print_result(text);
}

}  // namespace

Command compare_command(Tool& tool) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = tool.app().add_subcommand("compare", "Earlier reports of one model and text, side by side");
  command->add_option("reports", options->reports, "report.json files of perplexity, passkey or compare")->required();
  command->add_option("--max-kl", options->max_kl, "mean KL, in nats, that the recommended recipe may cost")
      ->check(real_number(0, 1e9, "a divergence in nats"))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "folder for report.json, .md, .html and .csv");
  tool.add_common(*command, {.dry_run = false});
  return {command, [&tool, options](RunContext& context) { run(tool, *options, context); }};
}

}  // namespace kvq::apps
