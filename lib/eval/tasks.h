#pragma once
// Long-context tasks, answered greedily with the unquantized cache and with quantized ones, side by side.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/core/run_folder.h>
#include <kvq/eval/perplexity.h>
#include <kvq/tasks/task.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

struct TaskAnswer {
  std::string text;  ///< what was generated
  double score = 0;
};

/// What the tasks are, for every row of the table the same.
struct TaskPrompt {
  std::string kind;
  std::int64_t length = 0;         ///< that it was made for; 0: as long as it came
  std::int64_t prompt_tokens = 0;  ///< of this prompt
  bool cut = false;                ///< its middle was left out
  std::vector<std::string> answers;
  bool operator==(const TaskPrompt&) const = default;
};

struct TaskResult {
  std::string name;
  std::string sha256;               ///< of the quantizer file; empty for the baseline
  std::vector<TaskAnswer> answers;  ///< one per task
  WeightsSource weights = {};
  std::string cache = {};  ///< as in VariantResult
};

struct TaskReport {
  std::vector<TaskPrompt> prompts;
  std::vector<TaskResult> results;  ///< baseline first
};

/// Mean score of one row over the tasks of one kind and length, and its difference from the baseline's on the same
/// tasks.
struct TaskScore {
  std::string kind;
  std::int64_t length = 0;
  std::int64_t tasks = 0;
  double score = 0;
  double delta = 0;
  std::optional<double> score_se, delta_se;  ///< over tasks; none below five
};
/// In order of first appearance.
std::vector<TaskScore> task_scores(const TaskReport& report, const TaskResult& row);

/// Answers that are finished on disk, so that an interrupted run goes on where it stopped: one file per task.
class TaskJournal {
 public:
  /// Throws what RunFolder throws.
  TaskJournal(const std::filesystem::path& folder, const RunIdentity& identity, bool force)
      : folder_(folder, identity, "task-", force) {}
  /// All rows' answers to a task, or nothing when it is not finished (or its file is damaged).
  std::optional<std::vector<TaskAnswer>> load(std::int64_t task, std::size_t rows) const;
  void store(std::int64_t task, const std::vector<TaskAnswer>& answers) const;
  void remove() { folder_.remove(); }

 private:
  RunFolder folder_;
};

struct TaskOptions {
  bool chat = false;            ///< inside the model's chat template
  std::int64_t max_length = 0;  ///< tokens of a prompt; longer ones lose their middle; 0: no limit
};

/// `journal` may be null.
TaskReport evaluate_tasks(Model& model, const Tokenizer& tokenizer, bool prepend_bos,
                          const std::vector<NamedQuantizer>& quantizers, const std::vector<Task>& tasks,
                          const TaskOptions& options, TaskJournal* journal, RunContext& context);

}  // namespace kvq
