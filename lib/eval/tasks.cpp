#include <kvq/eval/tasks.h>

#include <algorithm>
#include <memory>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/eval/generation.h>
#include <kvq/eval/variant.h>
#include <kvq/model/rope.h>
#include <kvq/stats/summary.h>
#include <kvq/tasks/answer_score.h>

namespace kvq {

namespace {

struct Group {
  std::string kind;
  std::int64_t length = 0;
  std::vector<double> scores, deltas;
};

}  // namespace

std::vector<TaskScore> task_scores(const TaskReport& report, const TaskResult& row) {
  std::vector<Group> groups;
  const std::vector<TaskAnswer>& baseline = report.results.front().answers;
  for (std::size_t task = 0; task < report.prompts.size(); ++task) {
    const TaskPrompt& prompt = report.prompts[task];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
      return other.kind == prompt.kind && other.length == prompt.length;
    });
    if (group == groups.end()) group = groups.insert(group, {prompt.kind, prompt.length, {}, {}});
    group->scores.push_back(row.answers[task].score);
    group->deltas.push_back(row.answers[task].score - baseline[task].score);
  }
  std::vector<TaskScore> scores;
  for (const Group& group : groups) {
    scores.push_back({group.kind, group.length, static_cast<std::int64_t>(group.scores.size()), mean(group.scores),
                      mean(group.deltas), standard_error(group.scores), standard_error(group.deltas)});
  }
  return scores;
}

std::optional<std::vector<TaskAnswer>> TaskJournal::load(std::int64_t task, std::size_t rows) const {
  const std::optional<std::string> body = folder_.load(task);
  if (!body) return std::nullopt;
  const nlohmann::json stored = nlohmann::json::parse(*body, nullptr, false);
  if (!stored.is_array() || stored.size() != rows) return std::nullopt;
  std::vector<TaskAnswer> answers;
  for (const nlohmann::json& answer : stored) answers.push_back({answer.at("text"), answer.at("score")});
  return answers;
}

void TaskJournal::store(std::int64_t task, const std::vector<TaskAnswer>& answers) const {
  nlohmann::json stored = nlohmann::json::array();
  for (const TaskAnswer& answer : answers) stored.push_back({{"text", answer.text}, {"score", answer.score}});
  folder_.store(task, stored.dump());
}

TaskReport evaluate_tasks(Model& model, const Tokenizer& tokenizer, bool prepend_bos,
                          const std::vector<NamedQuantizer>& quantizers, const std::vector<Task>& tasks,
                          const TaskOptions& options, TaskJournal* journal, RunContext& context) {
  const c10::InferenceMode no_gradients;
  ExactAttention exact(model.config().kv, model.config().rope);
  std::vector<AttentionBackend*> caches = {&exact};
  std::vector<Model*> blocks = {&model};
  std::vector<std::unique_ptr<KvCache>> owned;
  TaskReport report;
  report.results.push_back({"none", "", {}});
  for (const NamedQuantizer& named : quantizers) {
    owned.push_back(cache_of(named, model.config(), context.threads));
    caches.push_back(owned.back().get());
    blocks.push_back(&blocks_of(named, model));
    report.results.push_back({named.name, named.source.sha256, {}, named.weights, cache_name(named)});
  }
  context.progress.begin(fmt::format("tasks × {} caches", caches.size()),
                         static_cast<std::int64_t>(tasks.size() * caches.size()));
  for (std::size_t index = 0; index < tasks.size(); ++index) {
    const Task& task = tasks[index];
    std::vector<std::int32_t> prompt = task.ids(tokenizer, options.chat, prepend_bos);
    const bool cut = options.max_length > 0 && cut_middle(prompt, options.max_length);
    report.prompts.push_back({task.kind, task.length, static_cast<std::int64_t>(prompt.size()), cut, task.answers});
    std::optional<std::vector<TaskAnswer>> answers;
    if (journal) answers = journal->load(static_cast<std::int64_t>(index), caches.size());
    if (answers) {
      context.progress.advance(static_cast<std::int64_t>(caches.size()));
    } else {
      answers.emplace();
      for (std::size_t row = 0; row < caches.size(); ++row) {
        const std::string text = tokenizer.decode(
            greedy_continuation(*blocks[row], tokenizer, prompt, *caches[row], task.new_tokens, context));
        answers->push_back({text, score_answer(task.metric, text, task.answers)});
        context.progress.advance(1);
      }
      if (journal) journal->store(static_cast<std::int64_t>(index), *answers);
    }
    for (std::size_t row = 0; row < caches.size(); ++row) report.results[row].answers.push_back((*answers)[row]);
  }
  context.progress.end();
  return report;
}

}  // namespace kvq
