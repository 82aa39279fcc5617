#include <algorithm>

#include <fmt/format.h>

#include <kvq/eval/report.h>

namespace kvq {

namespace {

std::string name_of(const TaskScore& score) {
  return score.length > 0 ? fmt::format("{} {}", score.kind, score.length) : score.kind;
}

std::string in_percent(double share) { return fmt::format("{:.1f}", 100 * share); }

}  // namespace

Table task_table(const TaskReport& report) {
  Table table;
  table.header = {"task", "n"};
  for (const TaskResult& row : report.results) table.header.push_back(row.name);
  std::vector<std::vector<TaskScore>> columns;
  for (const TaskResult& row : report.results) columns.push_back(task_scores(report, row));
  for (std::size_t group = 0; group < columns.front().size(); ++group) {
    const TaskScore& baseline = columns.front()[group];
    table.rows.push_back({name_of(baseline), fmt::format("{}", baseline.tasks)});
    for (std::size_t column = 0; column < columns.size(); ++column) {
      const TaskScore& score = columns[column][group];
      std::string cell = in_percent(score.score);
      if (column > 0 && score.delta_se)
        cell += fmt::format(" ({:+.1f} ± {})", 100 * score.delta, in_percent(*score.delta_se));
      table.rows.back().push_back(std::move(cell));
    }
  }
  return table;
}

Table task_numbers(const TaskReport& report) {
  const auto optional_number = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : std::string();
  };
  Table table;
  table.header = {"name", "task", "length", "n", "score", "score_se", "delta", "delta_se", "sha256"};
  for (const TaskResult& row : report.results) {
    for (const TaskScore& score : task_scores(report, row)) {
      table.rows.push_back({row.name, score.kind, fmt::format("{}", score.length), fmt::format("{}", score.tasks),
                            fmt::format("{}", score.score), optional_number(score.score_se),
                            fmt::format("{}", score.delta), optional_number(score.delta_se), row.sha256});
    }
  }
  return table;
}

const char* task_legend() {
  return "Mean score in per cent of greedy answers; in parentheses the difference from the unquantized cache on the "
         "same tasks and its paired standard error (absent below five tasks).";
}

std::string tasks_markdown(const TaskEvaluation& evaluation) {
  std::string text = fmt::format("# Long-context tasks\n\nModel `{}`. {}\n\n", evaluation.subject.model, task_legend());
  text += to_markdown(task_table(evaluation.report));
  const auto cut = std::count_if(evaluation.report.prompts.begin(), evaluation.report.prompts.end(),
                                 [](const TaskPrompt& prompt) { return prompt.cut; });
  if (cut > 0)
    text += fmt::format("\n{} of {} prompts were longer than --max-length and lost their middle.\n", cut,
                        evaluation.report.prompts.size());
  return text + fmt::format("\n## Settings\n\n```toml\n{}```\n", evaluation.subject.settings);
}

}  // namespace kvq
