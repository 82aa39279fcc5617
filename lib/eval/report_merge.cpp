#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/eval/report_reader.h>

namespace kvq {

namespace {

/// Losses of the same model on the same windows differ by rounding only (another number of threads, another CPU).
constexpr double kSameLoss = 1e-3;

struct Pair {
  const std::string& first;
  const std::string& second;

  template <typename Value>
  void same(const char* what, const Value& a, const Value& b) const {
    if (a == b) return;
    fail(ErrorKind::Mismatch, fmt::format("{} and {} cannot be compared: {} is {} in the first, {} in the second",
                                          first, second, what, a, b));
  }
  void same_file(const char* what, const std::string& name_a, const std::string& hash_a, const std::string& name_b,
                 const std::string& hash_b) const {
    same(what, fmt::format("{} (sha256 {:.12}…)", name_a, hash_a),
         hash_a == hash_b ? fmt::format("{} (sha256 {:.12}…)", name_a, hash_a)
                          : fmt::format("{} (sha256 {:.12}…)", name_b, hash_b));
  }
  void same_model(const ReportSubject& a, const ReportSubject& b) const {
    same_file("the model", a.model, a.model_sha256, b.model, b.model_sha256);
    same("the tokenizer's sha256", a.tokenizer_sha256, b.tokenizer_sha256);
    same("--dtype", a.dtype, b.dtype);
    same("BOS (resolved)", a.bos, b.bos);
  }
};

bool same_text(const Evaluation& a, const Evaluation& b) { return a.subject.text_sha256 == b.subject.text_sha256; }

void check_same(const Pair& pair, const Evaluation& a, const Evaluation& b) {
  pair.same_model(a.subject, b.subject);
  pair.same_file("the text", a.subject.text, a.subject.text_sha256, b.subject.text, b.subject.text_sha256);
  pair.same("the window length (--seqlen)", a.report.seqlen, b.report.seqlen);
  pair.same("the number of windows (--max-windows)", a.report.windows, b.report.windows);
  pair.same("the first judged position (--judge-from)", a.report.span.from, b.report.span.from);
  if (a.report.span.prompt > 0 && b.report.span.prompt > 0)
    pair.same("the length of prompts (--prompt-tokens)", a.report.span.prompt, b.report.span.prompt);
  if (a.report.position_edges != b.report.position_edges)
    pair.same("the intervals of positions (position_edges)", fmt::format("{}", fmt::join(a.report.position_edges, " ")),
              fmt::format("{}", fmt::join(b.report.position_edges, " ")));
  const std::vector<double>&nll_a = a.report.results.front().window_nll, &nll_b = b.report.results.front().window_nll;
  for (std::size_t window = 0; window < nll_a.size(); ++window) {
    if (std::abs(nll_a[window] - nll_b[window]) > kSameLoss)
      pair.same(fmt::format("the unquantized loss of window {}", window).c_str(), nll_a[window], nll_b[window]);
  }
}

bool same_variant(const VariantResult& a, const VariantResult& b) {
  return a.source.sha256 == b.source.sha256 && a.cache == b.cache && a.parts == b.parts &&
         a.weights.sha256 == b.weights.sha256 && !(a.source.sha256.empty() && a.weights.sha256.empty());
}

template <typename Row>
std::string unused_name(const std::vector<Row>& rows, const std::string& name, const std::string& report) {
  const auto used = [&](const std::string& candidate) {
    return std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row.name == candidate; });
  };
  std::string result = name;
  if (used(result)) result += fmt::format(" [{}]", report);
  while (used(result)) result += "'";
  return result;
}

/// A recipe that was run on several kinds of cache has its row of each, told apart by them.
template <typename Row>
std::string name_beside(const std::vector<Row>& rows, const Row& row, const std::string& report) {
  const auto namesake =
      std::find_if(rows.begin(), rows.end(), [&](const Row& other) { return other.name == row.name; });
  const bool by_cache = namesake != rows.end() && !row.cache.empty() && namesake->cache != row.cache;
  return unused_name(rows, by_cache ? fmt::format("{} [{}]", row.name, row.cache) : row.name, report);
}

/// Of the same file on the same kind of cache, as far as reports say.
template <typename Row>
bool same_cache(const Row& a, const Row& b) {
  return a.sha256 == b.sha256 && a.weights.sha256 == b.weights.sha256 &&
         (a.cache == b.cache || a.cache.empty() || b.cache.empty());
}

void add_rows(PerplexityReport& into, const PerplexityReport& from, const std::string& report, Log& log) {
  for (std::size_t index = 1; index < from.results.size(); ++index) {
    VariantResult row = from.results[index];
    const auto known = std::find_if(into.results.begin(), into.results.end(),
                                    [&](const VariantResult& other) { return same_variant(row, other); });
    if (known != into.results.end()) {
      log.info(fmt::format("'{}' of {} stands in an earlier report already and is left out", row.name, report));
      continue;
    }
    row.name = name_beside(into.results, row, report);
    into.results.push_back(std::move(row));
  }
  into.seconds += from.seconds;
  into.span.prompt = std::max(into.span.prompt, from.span.prompt);  // 0: none of its caches needs one
}

void merge_passkey(std::optional<PasskeyEvaluation>& into, const std::string& first, const PasskeyEvaluation& from,
                   const std::string& report) {
  if (!into) {
    into = from;
    return;
  }
  const Pair pair{first, report};
  pair.same_model(into->subject, from.subject);
  const std::vector<PasskeyCell>&a = into->results.front().cells, &b = from.results.front().cells;
  pair.same("the number of passkey cells", a.size(), b.size());
  for (std::size_t cell = 0; cell < a.size(); ++cell) {
    pair.same("a passkey prompt's length", a[cell].length, b[cell].length);
    pair.same("a passkey prompt's number of tokens (--prompt)", a[cell].prompt_tokens, b[cell].prompt_tokens);
    pair.same("a passkey's depth", a[cell].depth, b[cell].depth);
    pair.same("the number of passkey trials", a[cell].trials, b[cell].trials);
  }
  // Greedy and exact: the same prompts (seed, form) give the same continuations.
  if (into->results.front().continuations != from.results.front().continuations)
    pair.same("the passkey prompts (--seed)", std::string("one"), std::string("another"));
  for (std::size_t index = 1; index < from.results.size(); ++index) {
    PasskeyResult row = from.results[index];
    const bool known = std::any_of(into->results.begin() + 1, into->results.end(), [&](const PasskeyResult& other) {
      return same_cache(other, row) && other.continuations == row.continuations;
    });
    if (known) continue;
    row.name = name_beside(into->results, row, report);
    into->results.push_back(std::move(row));
  }
}

void merge_tasks(std::optional<TaskEvaluation>& into, const std::string& first, const TaskEvaluation& from,
                 const std::string& report) {
  if (!into) {
    into = from;
    return;
  }
  const Pair pair{first, report};
  pair.same_model(into->subject, from.subject);
  pair.same("the number of tasks", into->report.prompts.size(), from.report.prompts.size());
  for (std::size_t task = 0; task < from.report.prompts.size(); ++task) {
    if (into->report.prompts[task] != from.report.prompts[task])
      pair.same(fmt::format("task {}", task).c_str(), std::string("one"), std::string("another"));
  }
  for (std::size_t index = 1; index < from.report.results.size(); ++index) {
    TaskResult row = from.report.results[index];
    const auto same = [&](const TaskResult& other) {
      return same_cache(other, row) &&
             std::equal(other.answers.begin(), other.answers.end(), row.answers.begin(), row.answers.end(),
                        [](const TaskAnswer& a, const TaskAnswer& b) { return a.text == b.text; });
    };
    if (std::any_of(into->report.results.begin() + 1, into->report.results.end(), same)) continue;
    row.name = name_beside(into->report.results, row, report);
    into->report.results.push_back(std::move(row));
  }
}

}  // namespace

ReportDocument merge_reports(const std::vector<NamedReport>& reports, bool one_text, Log& log) {
  ReportDocument merged;
  std::vector<std::string> first_of;  // per evaluation of `merged`: the report that it began with
  std::string passkey_first, tasks_first;
  std::optional<std::pair<std::string, ReportSubject>> model;
  for (const NamedReport& named : reports) {
    const ReportDocument& document = named.document;
    const auto check_model = [&](const ReportSubject& subject) {
      if (model) Pair{model->first, named.name}.same_model(model->second, subject);
      if (!model) model = {named.name, subject};
    };
    for (const Evaluation& evaluation : document.evaluations) {
      check_model(evaluation.subject);
      auto into = std::find_if(merged.evaluations.begin(), merged.evaluations.end(),
                               [&](const Evaluation& other) { return same_text(other, evaluation); });
      if (into == merged.evaluations.end() && one_text && !merged.evaluations.empty())
        into = merged.evaluations.begin();  // says what differs
      if (into == merged.evaluations.end()) {
        merged.evaluations.push_back(evaluation);
        first_of.push_back(named.name);
        continue;
      }
      check_same({first_of[static_cast<std::size_t>(into - merged.evaluations.begin())], named.name}, *into,
                 evaluation);
      add_rows(into->report, evaluation.report, named.name, log);
    }
    if (document.passkey) {
      check_model(document.passkey->subject);
      merge_passkey(merged.passkey, passkey_first, *document.passkey, named.name);
      if (passkey_first.empty()) passkey_first = named.name;
    }
    if (document.tasks) {
      check_model(document.tasks->subject);
      merge_tasks(merged.tasks, tasks_first, *document.tasks, named.name);
      if (tasks_first.empty()) tasks_first = named.name;
    }
    for (const Evaluation& evaluation : document.evaluations) {
      if (document.commands.empty()) merged.commands.push_back(evaluation.subject.command);
    }
    if (document.passkey && document.evaluations.empty()) merged.commands.push_back(document.passkey->subject.command);
    if (document.tasks && document.evaluations.empty()) merged.commands.push_back(document.tasks->subject.command);
    merged.commands.insert(merged.commands.end(), document.commands.begin(), document.commands.end());
    if (reports.size() == 1) {
      merged.title = document.title;
      merged.question = document.question;
      merged.claims = document.claims;
    }
  }
  // Commands of one report may stand in several that were merged before.
  std::set<std::string> seen;
  std::erase_if(merged.commands,
                [&](const std::string& command) { return command.empty() || !seen.insert(command).second; });
  return merged;
}

}  // namespace kvq
