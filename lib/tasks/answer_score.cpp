#include <kvq/tasks/answer_score.h>

#include <algorithm>
#include <map>
#include <sstream>

#include <kvq/core/error.h>

namespace kvq {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool punctuation(char c) {
  return c > ' ' && c < 127 && !(c >= '0' && c <= '9') && !(lower(c) >= 'a' && lower(c) <= 'z');
}

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// ROUGE's words: lower case, punctuation separates, articles count.
std::vector<std::string> rouge_words(std::string_view text) {
  std::string plain = lowered(text);
  std::replace_if(plain.begin(), plain.end(), punctuation, ' ');
  return split(plain);
}

/// Words that both have, each as often as in the one that has it less.
std::size_t common_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::map<std::string, int> left;
  for (const std::string& word : a) ++left[word];
  return static_cast<std::size_t>(
      std::count_if(b.begin(), b.end(), [&](const std::string& word) { return left[word]-- > 0; }));
}

std::size_t longest_common_subsequence(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::size_t> above(b.size() + 1), row(b.size() + 1);
  for (const std::string& word : a) {
    for (std::size_t index = 0; index < b.size(); ++index)
      row[index + 1] = word == b[index] ? above[index] + 1 : std::max(row[index], above[index + 1]);
    above = row;
  }
  return above.back();
}

double f_measure(std::size_t common, std::size_t found, std::size_t wanted) {
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(found);
  const double recall = static_cast<double>(common) / static_cast<double>(wanted);
  return 2 * precision * recall / (precision + recall);
}

std::string first_line(const std::string& text) {
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) return line;
  }
  return "";
}

double score_one(Metric metric, const std::string& text, const std::string& answer) {
  if (metric == Metric::Exact) return normalised_answer(text) == normalised_answer(answer) ? 1 : 0;
  const auto words = [&](const std::string& of) {
    return metric == Metric::F1 ? split(normalised_answer(of)) : rouge_words(of);
  };
  const std::vector<std::string> found = words(text), wanted = words(answer);
  if (found.empty() || wanted.empty()) return found.empty() && wanted.empty() ? 1 : 0;
  const std::size_t common =
      metric == Metric::F1 ? common_words(found, wanted) : longest_common_subsequence(found, wanted);
  return f_measure(common, found.size(), wanted.size());
}

}  // namespace

std::string normalised_answer(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (!punctuation(c)) plain += lower(c);
  }
  std::istringstream stream(plain);
  std::string result;
  for (std::string word; stream >> word;) {
    if (word != "a" && word != "an" && word != "the") result += (result.empty() ? "" : " ") + word;
  }
  return result;
}

double score_answer(Metric metric, const std::string& text, const std::vector<std::string>& answers) {
  KVQ_ASSERT(!answers.empty());
  if (metric == Metric::Recall) {
    const std::string all = lowered(text);
    const auto found = std::count_if(answers.begin(), answers.end(), [&](const std::string& answer) {
      return all.find(lowered(answer)) != std::string::npos;
    });
    return static_cast<double>(found) / static_cast<double>(answers.size());
  }
  const std::string line = first_line(text);
  double best = 0;
  for (const std::string& answer : answers) best = std::max(best, score_one(metric, line, answer));
  return best;
}

const std::vector<std::string>& metric_names() {
  static const std::vector<std::string> names = {"recall", "exact", "f1", "rouge-l"};
  return names;
}

std::optional<Metric> find_metric(std::string_view name) {
  const auto& names = metric_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? std::nullopt : std::optional(static_cast<Metric>(at - names.begin()));
}

}  // namespace kvq
