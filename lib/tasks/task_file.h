#pragma once
// Tasks from a file, so that LongBench, NarrativeQA and the like can be run by those who have them.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <kvq/tasks/task.h>

namespace kvq {

struct TaskFileOptions {
  std::string form;              ///< of the prompt, with {context} and {question} where they go
  std::string lead;              ///< begins the answer in the raw form
  std::optional<Metric> metric;  ///< for lines that name none
  int new_tokens = 32;           ///< for lines that name no number
};

/// JSON Lines; keys "context" and "question" (or LongBench's "input"), one of which may be missing, "answers" (a string
/// or an array of strings), and optional "metric", "new_tokens" and "kind" (LongBench's "dataset" does as well); the
/// file's name without suffix where there is none. Other keys are passed over. Throws Input and Format with the line;
/// Usage when the form has no {question} or {context}.
std::vector<Task> read_task_file(const std::filesystem::path& path, const TaskFileOptions& options);

}  // namespace kvq
