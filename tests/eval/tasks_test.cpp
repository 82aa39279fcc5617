// Tasks with every cache side by side, their scores, and the journal.
#include <cmath>
#include <fstream>

#include "support/catch.h"
#include "support/fake_model.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/eval/report_reader.h>
#include <kvq/eval/tasks.h>

using namespace kvq;
using kvq::test::ByteTokenizer;
using kvq::test::FakeModel;
using kvq::test::TempDir;

namespace {

std::vector<Task> some_tasks() {
  std::vector<Task> tasks;
  for (int index = 0; index < 7; ++index) {
    Task task;
    task.kind = index < 5 ? "five" : "two";
    task.prompt = "What is " + std::to_string(index) + "? ";
    task.lead = "It is";
    task.answers = {std::to_string(index)};
    task.new_tokens = 6;
    tasks.push_back(task);
  }
  return tasks;
}

NamedQuantizer unquantized(const Model& model) {
  auto none = std::make_shared<Quantizer>();
  none->recipe = parse_recipe("none");
  none->shape = model.config().kv;
  none->rope = model.config().rope;
  return {"copy", none};
}

TaskReport run(FakeModel& model, TaskJournal* journal = nullptr, const TaskOptions& options = {}) {
  return evaluate_tasks(model, ByteTokenizer(), false, {unquantized(model)}, some_tasks(), options, journal,
                        quiet_context());
}

}  // namespace

TEST_CASE("Every cache answers the same tasks, and the unquantized one as a quantizer answers the same") {
  FakeModel model(128);  // ASCII, so that every answer is text
  const TaskReport report = run(model);
  REQUIRE(report.results.size() == 2);
  REQUIRE(report.prompts.size() == 7);
  CHECK(report.results[0].name == "none");
  for (std::size_t task = 0; task < 7; ++task) {
    CHECK(report.results[0].answers[task].text == report.results[1].answers[task].text);
    CHECK(report.prompts[task].prompt_tokens == 16);  // one byte a token, the lead included
    CHECK_FALSE(report.prompts[task].cut);
  }
  const TaskReport cut = run(model, nullptr, {.max_length = 9});
  CHECK(cut.prompts[3].prompt_tokens == 9);
  CHECK(cut.prompts[3].cut);
}

TEST_CASE("Scores are means over the tasks of a kind and length, differences are paired") {
  TaskReport report;
  for (int task = 0; task < 7; ++task) report.prompts.push_back({task < 5 ? "five" : "two", 100, 90, false, {"x"}});
  report.results.push_back({"none", "", {}});
  report.results.push_back({"q", "", {}});
  const std::vector<double> baseline = {1, 0.5, 1, 0, 1, 1, 0}, quantized = {1, 0, 0.5, 0, 0.5, 0, 1};
  for (int task = 0; task < 7; ++task) {
    report.results[0].answers.push_back({"", baseline[task]});
    report.results[1].answers.push_back({"", quantized[task]});
  }
  const std::vector<TaskScore> scores = task_scores(report, report.results[1]);
  REQUIRE(scores.size() == 2);
  CHECK(scores[0].kind == "five");
  CHECK(scores[0].tasks == 5);
  CHECK(scores[0].score == Approx(0.4));
  CHECK(scores[0].delta == Approx(-0.3));
  // Deviations of 0, -.5, -.5, 0, -.5 from -.3: squares sum to .3; / 4 / 5.
  REQUIRE(scores[0].delta_se.has_value());
  CHECK(*scores[0].delta_se == Approx(std::sqrt(0.3 / 4 / 5)));
  CHECK(scores[1].score == 0.5);
  CHECK(scores[1].delta == 0);
  CHECK_FALSE(scores[1].delta_se.has_value());
}

TEST_CASE("Finished tasks are not answered again; a damaged one is") {
  TempDir folder;
  const RunIdentity identity{{{"model", "fake"}}};
  FakeModel model(128);  // ASCII, so that every answer is text
  const TaskReport whole = run(model);
  const int calls = model.layer_calls;
  const auto same = [&](const TaskReport& report) {
    for (std::size_t row = 0; row < 2; ++row) {
      for (std::size_t task = 0; task < 7; ++task) {
        CHECK(report.results[row].answers[task].text == whole.results[row].answers[task].text);
        CHECK(report.results[row].answers[task].score == whole.results[row].answers[task].score);
      }
    }
  };
  {
    TaskJournal journal(folder / "j", identity, false);
    same(run(model, &journal));
  }
  CHECK(model.layer_calls == 2 * calls);
  {
    TaskJournal journal(folder / "j", identity, false);
    same(run(model, &journal));
    CHECK(model.layer_calls == 2 * calls);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "j")) {
    if (entry.path().filename().string() != "task-000003") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2, std::ios::end);
    file.put('7');
  }
  {
    TaskJournal journal(folder / "j", identity, false);
    same(run(model, &journal));
    CHECK(model.layer_calls > 2 * calls);
    CHECK(model.layer_calls <= 2 * calls + calls / 7 + 1);
    journal.remove();
  }
  CHECK_FALSE(std::filesystem::exists(folder / "j"));
}

TEST_CASE("A report of tasks reads back, merges with others of the same tasks, and refuses others") {
  TempDir folder;
  FakeModel model(128);  // ASCII, so that every answer is text
  ReportDocument document;
  document.tasks = TaskEvaluation{{}, run(model)};
  document.tasks->subject.model_sha256 = std::string(64, 'm');
  document.tasks->report.results[1].sha256 = std::string(64, 'q');
  document.tasks->report.results[0].answers[2].score = 1;
  std::ofstream(folder / "a.json") << document_json(document);
  const ReportDocument read = read_report(folder / "a.json");
  REQUIRE(read.tasks.has_value());
  CHECK((read.tasks->report.prompts == document.tasks->report.prompts));
  CHECK(read.tasks->report.results[0].answers[2].score == 1);
  CHECK(document_json(read) == document_json(document));

  ReportDocument other = read;
  other.tasks->report.results[1].sha256 = std::string(64, 'r');
  ReportDocument merged = merge_reports({{"a", read}, {"b", other}, {"a", read}}, true, quiet_context().log);
  REQUIRE(merged.tasks->report.results.size() == 3);
  CHECK(merged.tasks->report.results[2].name == "copy [b]");
  other.tasks->report.prompts[4].answers = {"else"};
  CHECK_THROWS_AS(merge_reports({{"a", read}, {"b", other}}, true, quiet_context().log), Error);
}
