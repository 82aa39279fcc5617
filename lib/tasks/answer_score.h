#pragma once
// Scores of generated answers, as the benchmarks define them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/tasks/task.h>

namespace kvq {

/// SQuAD's normalisation (Rajpurkar et al., arXiv 1606.05250): lower case, without ASCII punctuation, without the words
/// a, an, the; blanks in one. Letters beyond ASCII stay as they are.
std::string normalised_answer(std::string_view text);

/// 0 to 1; `answers` must not be empty. For Exact, F1 and RougeL only the first line of `text` counts that is not
/// blank: a base model goes on writing after its answer.
double score_answer(Metric metric, const std::string& text, const std::vector<std::string>& answers);

/// "recall", "exact", "f1", "rouge-l".
const std::vector<std::string>& metric_names();
std::optional<Metric> find_metric(std::string_view name);

}  // namespace kvq
