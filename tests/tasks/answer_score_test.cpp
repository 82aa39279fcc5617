// Scores of answers: values worked out from the definitions that the benchmarks publish.
#include "support/catch.h"

#include <kvq/tasks/answer_score.h>

using namespace kvq;

TEST_CASE("Answers are normalised as SQuAD does it") {
  CHECK(normalised_answer("The Cat's, a  HAT!") == "cats hat");
  CHECK(normalised_answer("  An apple\n\t(red) ") == "apple red");
  CHECK(normalised_answer("another theme") == "another theme");  // articles are words, not letters
  CHECK(normalised_answer("the").empty());
  CHECK(normalised_answer("Zürich 3-4") == "zürich 34");
}

TEST_CASE("Recall is the share of the answers that occur, case aside, anywhere in the text") {
  const std::vector<std::string> answers = {"1234567", "7654321", "Velomir", "7654322"};
  CHECK(score_answer(Metric::Recall, "They are 1234567,\nvelomir and 765432.", answers) == 0.5);
  CHECK(score_answer(Metric::Recall, "", answers) == 0);
  CHECK(score_answer(Metric::Recall, "x7654321x7654322VELOMIR1234567", answers) == 1);
}

TEST_CASE("Exact match, over the first line that says something, best answer counts") {
  CHECK(score_answer(Metric::Exact, " \n The Eiffel tower.\nQuestion: next", {"Big Ben", "eiffel Tower"}) == 1);
  CHECK(score_answer(Metric::Exact, "The Eiffel tower in Paris", {"Eiffel tower"}) == 0);
  CHECK(score_answer(Metric::Exact, "", {"yes"}) == 0);
}

TEST_CASE("F1 counts common words as often as both have them") {
  CHECK(score_answer(Metric::F1, "the cat sat on the mat", {"a cat sat"}) == Approx(2.0 / 3));  // 2 of 4, 2 of 2
  CHECK(score_answer(Metric::F1, "no no no", {"no, no"}) == Approx(0.8));                       // 2 of 3, 2 of 2
  CHECK(score_answer(Metric::F1, "dog", {"cat", "dog barks"}) == Approx(2.0 / 3));
  CHECK(score_answer(Metric::F1, "dog", {"cat"}) == 0);
}

TEST_CASE("ROUGE-L: the examples of its paper") {
  // Lin 2004, section 3: reference "police killed the gunman", F with equal weights.
  CHECK(score_answer(Metric::RougeL, "Police kill the gunman.", {"police killed the gunman"}) == Approx(0.75));
  CHECK(score_answer(Metric::RougeL, "the gunman kill police", {"police killed the gunman"}) == Approx(0.5));
  CHECK(score_answer(Metric::RougeL, "the gunman police killed", {"police killed the gunman"}) == Approx(0.5));
  CHECK(score_answer(Metric::RougeL, "a b c d", {"x a y c z d"}) == Approx(2 * 0.75 * 0.5 / 1.25));
}

TEST_CASE("Metrics have names") {
  for (const std::string& name : metric_names()) CHECK(find_metric(name).has_value());
  CHECK(find_metric("f1") == Metric::F1);
  CHECK_FALSE(find_metric("F1").has_value());
  CHECK_FALSE(find_metric("").has_value());
}
