// Synthetic tasks: what must be in a prompt for its answer to be in it, and nothing else.
#include <map>
#include <set>
#include <sstream>

#include "support/catch.h"
#include "support/fake_model.h"

#include <kvq/core/error.h>
#include <kvq/tasks/ruler.h>

using namespace kvq;
using kvq::test::ByteTokenizer;

namespace {

constexpr std::int64_t kLength = 6000;

Task make(RulerTask kind, std::uint64_t seed, std::int64_t length = kLength) {
  return make_ruler_task(kind, ByteTokenizer(), length, false, false, seed);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

/// "The special number of KEY is NUMBER." of a whole text.
std::multimap<std::string, std::string> statements(const std::string& text) {
  std::multimap<std::string, std::string> found;
  std::istringstream lines(text);
  const std::string begin = "The special number of ", middle = " is ";
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(begin, 0) != 0) continue;
    const auto is = line.find(middle);
    found.emplace(line.substr(begin.size(), is - begin.size()),
                  line.substr(is + middle.size(), line.size() - is - middle.size() - 1));
  }
  return found;
}

}  // namespace

TEST_CASE("Every synthetic task is as long as fits, the same for the same seed and another for another") {
  for (std::size_t kind = 0; kind < ruler_names().size(); ++kind) {
    for (const std::int64_t length : {3000, 6000, 20000}) {
      INFO(ruler_names()[kind] << " of " << length);
      const Task task = make(static_cast<RulerTask>(kind), 7, length);
      const auto tokens = static_cast<std::int64_t>(task.ids(ByteTokenizer(), false, false).size());
      CHECK(tokens <= length);
      CHECK(tokens > length - 400);  // a unit more would not fit: a sentence, or a word in its repetitions
      CHECK(task.kind == ruler_names()[kind]);
      CHECK(task.length == length);
      CHECK(make(static_cast<RulerTask>(kind), 7, length).prompt == task.prompt);
      CHECK(make(static_cast<RulerTask>(kind), 8, length).prompt != task.prompt);
      CHECK(std::set<std::string>(task.answers.begin(), task.answers.end()).size() == task.answers.size());
    }
  }
}

TEST_CASE("Needles: each key that is asked for stands in the text with the numbers that are the answers") {
  const std::map<RulerTask, std::pair<int, int>> wanted = {{RulerTask::NiahSingle, {1, 1}},
                                                           {RulerTask::NiahMultiKey, {4, 1}},
                                                           {RulerTask::NiahMultiValue, {4, 4}},
                                                           {RulerTask::NiahMultiQuery, {4, 4}}};
  for (const auto& [kind, sizes] : wanted) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Task task = make(kind, seed);
      INFO(task.prompt);
      const auto found = statements(task.prompt);
      CHECK(static_cast<int>(found.size()) == sizes.first);
      CHECK(static_cast<int>(task.answers.size()) == sizes.second);
      const std::string question = task.prompt.substr(task.prompt.rfind("Question:"));
      std::multiset<std::string> of_asked;
      for (const auto& [key, number] : found) {
        CHECK(number.size() == 7);
        if (question.find(key) != std::string::npos) of_asked.insert(number);
      }
      CHECK(of_asked == std::multiset<std::string>(task.answers.begin(), task.answers.end()));
      CHECK(task.lead.find(task.answers.front()) == std::string::npos);
    }
  }
}

TEST_CASE("Dense needles: nothing but keys and numbers, the asked one anywhere") {
  std::set<int> places;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Task task = make(RulerTask::NiahDense, seed);
    const auto found = statements(task.prompt);
    CHECK(found.size() > 100);
    CHECK(count(task.prompt, task.answers.at(0)) == 1);
    places.insert(static_cast<int>(task.prompt.find(task.answers[0]) * 4 / task.prompt.size()));
  }
  CHECK(places.size() == 4);  // of 20, some in every quarter
}

TEST_CASE("Variable tracking: the answers are the variables that the value reaches") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Task task = make(RulerTask::VariableTracking, seed);
    INFO(task.prompt);
    std::map<std::string, std::string> values;
    std::istringstream lines(task.prompt);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("Set ", 0) != 0) continue;
      std::istringstream words(line);
      std::string set, name, to, value, of, variable, source;
      words >> set >> name >> to >> value;
      if (value == "the") {
        words >> of >> variable >> source;
        source.pop_back();
        REQUIRE(values.count(source) == 1);  // set before it is handed on
        values[name] = values[source];
      } else {
        value.pop_back();
        values[name] = value;
      }
    }
    const std::string question = task.prompt.substr(task.prompt.rfind("Question:"));
    std::set<std::string> have;
    for (const auto& [name, value] : values) {
      if (question.find(value) != std::string::npos) have.insert(name);
    }
    CHECK(have == std::set<std::string>(task.answers.begin(), task.answers.end()));
    CHECK(have.size() == 5);
  }
}

TEST_CASE("Common and frequent words: the answers are those that the text has most of") {
  for (const RulerTask kind : {RulerTask::CommonWords, RulerTask::FrequentWords}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Task task = make(kind, seed, 20000);
      const std::string marker = kind == RulerTask::CommonWords ? ".\n\n1. " : "\n\n";
      const auto begin = kind == RulerTask::CommonWords ? task.prompt.rfind(marker) : task.prompt.find(marker);
      std::istringstream words(task.prompt.substr(begin, task.prompt.rfind("Question:") - begin));
      std::map<std::string, int> counts;
      for (std::string word; words >> word;) {
        if (word.find('.') == std::string::npos) ++counts[word];
      }
      int least = 1 << 30, next = 0;
      for (const std::string& answer : task.answers) least = std::min(least, counts[answer]);
      for (const auto& [word, number] : counts) {
        if (std::find(task.answers.begin(), task.answers.end(), word) == task.answers.end())
          next = std::max(next, number);
      }
      INFO(ruler_names()[static_cast<std::size_t>(kind)] << ": " << least << " against " << next);
      CHECK(least > next);
      CHECK(task.answers.size() == (kind == RulerTask::CommonWords ? 10u : 3u));
    }
  }
}

TEST_CASE("A length that not even the shortest prompt fits is refused with both numbers") {
  try {
    make(RulerTask::CommonWords, 0, 500);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.what(), ContainsSubstring("--lengths 500") && ContainsSubstring("common-words"));
  }
}
