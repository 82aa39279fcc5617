#include <fstream>

#include "support/catch.h"
#include "support/fake_model.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/tasks/task_file.h>

using namespace kvq;
using kvq::test::TempDir;

namespace {

const TaskFileOptions kOptions = {"{context}\n\nQ: {question}\n", "A:", Metric::F1, 9};

std::vector<Task> read(const std::string& content, const TaskFileOptions& options = kOptions) {
  TempDir folder;
  const auto path = folder / "my tasks.jsonl";
  std::ofstream(path, std::ios::binary) << content;
  return read_task_file(path, options);
}

std::string refusal(const std::string& content, const TaskFileOptions& options = kOptions) {
  try {
    read(content, options);
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::Input || error.kind() == ErrorKind::Format || error.kind() == ErrorKind::Usage));
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Tasks come from JSON Lines, with LongBench's names, too") {
  const std::vector<Task> tasks = read(
      "\xEF\xBB\xBF{\"context\": \"C {question}\", \"question\": \"Q?\", \"answers\": [\"a\", \"b\"], \"metric\": "
      "\"rouge-l\", \"new_tokens\": 3, \"kind\": \"mine\"}\r\n\n"
      "{\"input\": \"Why?\", \"context\": \"Long.\", \"answers\": \"x\", \"dataset\": \"hotpotqa\", \"length\": 4, "
      "\"all_classes\": null}\n"
      "{\"context\": \"Only\", \"answers\": [\"y\"]}");
  REQUIRE(tasks.size() == 3);
  CHECK(tasks[0].kind == "mine");
  CHECK(tasks[0].prompt == "C {question}\n\nQ: Q?\n");  // what a part holds is not filled in again
  CHECK(tasks[0].lead == "A:");
  CHECK(tasks[0].answers == std::vector<std::string>{"a", "b"});
  CHECK(tasks[0].metric == Metric::RougeL);
  CHECK(tasks[0].new_tokens == 3);
  CHECK(tasks[1].kind == "hotpotqa");
  CHECK(tasks[1].prompt == "Long.\n\nQ: Why?\n");
  CHECK(tasks[1].answers == std::vector<std::string>{"x"});
  CHECK(tasks[1].metric == Metric::F1);
  CHECK(tasks[1].new_tokens == 9);
  CHECK(tasks[2].kind == "my tasks");
  CHECK(tasks[2].prompt == "Only\n\nQ: \n");
}

TEST_CASE("Bad lines are refused with their number and what would be right") {
  const std::string good = "{\"question\": \"q\", \"answers\": \"a\"}\n";
  CHECK_THAT(refusal(good + "{\"question\": \"q\"}"), ContainsSubstring("line 2") && ContainsSubstring("\"answers\""));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": []}"), ContainsSubstring("\"answers\" is empty"));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": [3]}"), ContainsSubstring("array of strings"));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": \"\"}"), ContainsSubstring("an answer is empty"));
  CHECK_THAT(refusal("{\"answers\": \"a\"}"), ContainsSubstring("neither \"context\" nor \"question\""));
  CHECK_THAT(refusal("{\"question\": 4, \"answers\": \"a\"}"), ContainsSubstring("\"question\" must be a string"));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": \"a\", \"metric\": \"bleu\"}"),
             ContainsSubstring("'bleu'") && ContainsSubstring("rouge-l"));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": \"a\", \"new_tokens\": 0}"), ContainsSubstring("1 to 4096"));
  CHECK_THAT(refusal("{\"question\": \"q\", \"answers\": \"a\", \"new_tokens\": 1.5}"), ContainsSubstring("1 to 4096"));
  CHECK_THAT(refusal("[1]"), ContainsSubstring("an object is needed"));
  CHECK_THAT(refusal(good + "\n{\"question\""), ContainsSubstring("line 3"));
  CHECK_THAT(refusal("\n \n"), ContainsSubstring("holds no task"));
  CHECK_THAT(refusal("\xff"), ContainsSubstring("not valid UTF-8"));
  CHECK_THAT(refusal(good, {"{context}", "A:", Metric::F1, 9}), ContainsSubstring("{question}"));
  CHECK_THAT(refusal(good, {"{context}{question}", "A:", std::nullopt, 9}), ContainsSubstring("--metric"));
}

TEST_CASE("A prompt that is too long loses its middle") {
  std::vector<std::int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK_FALSE(cut_middle(ids, 10));
  CHECK(ids.size() == 10);
  CHECK(cut_middle(ids, 5));
  CHECK(ids == std::vector<std::int32_t>{0, 1, 7, 8, 9});
  CHECK(cut_middle(ids, 1));
  CHECK(ids == std::vector<std::int32_t>{9});
}
