#include <kvq/tasks/task_file.h>

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/formats/strict_json.h>
#include <kvq/tasks/answer_score.h>
#include <kvq/text/corpus.h>

namespace kvq {

namespace {

using Json = nlohmann::json;

std::string joined(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

struct Line {
  std::string where;  ///< file and line, begins every message
  Json object;

  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ErrorKind::Input, fmt::format("{}: {}", where, problem));
  }
  std::string text(const char* key) const {
    const auto at = object.find(key);
    if (at == object.end()) return "";
    if (!at->is_string()) refuse(fmt::format("\"{}\" must be a string", key));
    return at->get<std::string>();
  }
  std::string first_of(const char* key, const char* other) const {
    return object.contains(key) ? text(key) : text(other);
  }

  std::vector<std::string> answers() const {
    const auto at = object.find("answers");
    if (at == object.end()) refuse("\"answers\" is missing: a string, or an array of strings");
    const Json list = at->is_array() ? *at : Json::array({*at});
    std::vector<std::string> result;
    for (const Json& answer : list) {
      if (!answer.is_string()) refuse("\"answers\" must be a string or an array of strings");
      if (answer.get_ref<const std::string&>().empty()) refuse("an answer is empty");
      result.push_back(answer.get<std::string>());
    }
    if (result.empty()) refuse("\"answers\" is empty");
    return result;
  }
  Metric metric(const std::optional<Metric>& otherwise) const {
    const std::string name = text("metric");
    if (name.empty() && otherwise) return *otherwise;
    const auto known = find_metric(name);
    if (name.empty()) refuse("has no \"metric\", and --metric names none");
    if (!known) refuse(fmt::format("\"metric\" is '{}'; known: {}", name, joined(metric_names())));
    return *known;
  }
  int new_tokens(int otherwise) const {
    const auto at = object.find("new_tokens");
    if (at == object.end()) return otherwise;
    const bool whole = at->is_number_unsigned() && at->get<std::uint64_t>() >= 1 && at->get<std::uint64_t>() <= 4096;
    if (!whole) refuse("\"new_tokens\" must be a whole number from 1 to 4096");
    return at->get<int>();
  }
};

/// Puts the parts where the form has their names; what the parts hold is not looked at again.
std::string filled(std::string_view form, const std::string& context, const std::string& question) {
  constexpr std::string_view kContext = "{context}", kQuestion = "{question}";
  std::string result;
  while (!form.empty()) {
    if (form.starts_with(kContext)) {
      result += context;
      form.remove_prefix(kContext.size());
    } else if (form.starts_with(kQuestion)) {
      result += question;
      form.remove_prefix(kQuestion.size());
    } else {
      result += form.front();
      form.remove_prefix(1);
    }
  }
  return result;
}

Task task_of(const Line& line, const std::string& kind, const TaskFileOptions& options) {
  if (!line.object.is_object()) line.refuse("an object is needed");
  const std::string context = line.text("context"), question = line.first_of("question", "input");
  if (context.empty() && question.empty()) line.refuse("has neither \"context\" nor \"question\"");
  Task task;
  task.kind = line.first_of("kind", "dataset");
  if (task.kind.empty()) task.kind = kind;
  task.prompt = filled(options.form, context, question);
  task.lead = options.lead;
  task.answers = line.answers();
  task.metric = line.metric(options.metric);
  task.new_tokens = line.new_tokens(options.new_tokens);
  return task;
}

}  // namespace

std::vector<Task> read_task_file(const std::filesystem::path& path, const TaskFileOptions& options) {
  for (const char* part : {"{context}", "{question}"}) {
    if (options.form.find(part) == std::string::npos)
      fail(ErrorKind::Usage, fmt::format("--form '{}': does not say where the {} goes", shortened(options.form), part));
  }
  const std::string content = read_utf8(path).text;
  std::string_view text = content;
  std::vector<Task> tasks;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view source = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), source.size() + 1));
    if (source.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", path.string(), number);
    tasks.push_back(task_of({where, parse_strict_json(where, source)}, path.stem().string(), options));
  }
  if (tasks.empty()) fail(ErrorKind::Input, fmt::format("{}: holds no task", path.string()));
  return tasks;
}

}  // namespace kvq
