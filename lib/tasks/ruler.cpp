#include <kvq/tasks/ruler.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/tasks/made_words.h>

namespace kvq {

namespace {

constexpr int kNumberTokens = 16;  // room for one number or word in the answer; some tokenizers split digits

/// "a", "a and b", "a, b and c".
std::string enumeration(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t index = 0; index < items.size(); ++index) {
    if (index > 0) text += index + 1 == items.size() ? " and " : ", ";
    text += items[index];
  }
  return text;
}

std::vector<std::string> fillers(std::int64_t count, Rng& rng) {
  std::vector<std::string> lines;
  for (std::int64_t line = 0; line < count; ++line) lines.push_back(filler_sentence(rng));
  return lines;
}

/// Puts `statements` between `lines`, at places of their own choosing but in their order.
std::string scattered(const std::vector<std::string>& lines, const std::vector<std::string>& statements, Rng& rng) {
  std::vector<std::uint64_t> places;
  for (std::size_t statement = 0; statement < statements.size(); ++statement)
    places.push_back(rng.below(lines.size() + 1));
  std::sort(places.begin(), places.end());
  std::string text;
  std::size_t next = 0;
  for (std::size_t line = 0; line <= lines.size(); ++line) {
    while (next < places.size() && places[next] == line) text += statements[next++] + "\n";
    if (line < lines.size()) text += lines[line] + "\n";
  }
  return text;
}

std::string number_statement(const std::string& key, const std::string& number) {
  return fmt::format("The special number of {} is {}.", key, number);
}

/// `keys` keys with `values` numbers each; `asked` of the keys are asked for. Without filler, `units` is the number of
/// keys.
Task needles(std::int64_t units, bool dense, std::size_t keys, std::size_t values, std::size_t asked, Rng& rng) {
  if (dense) keys = static_cast<std::size_t>(units) + asked;
  const std::vector<std::string> names = made_words(keys, rng), numbers = made_numbers(keys * values, rng);
  std::vector<std::string> statements;
  for (std::size_t index = 0; index < numbers.size(); ++index)
    statements.push_back(number_statement(names[index / values], numbers[index]));
  Task task;
  const std::size_t first = dense ? rng.below(keys) : 0;  // the statements are shuffled, so the first is any
  const std::vector<std::string> asked_names(names.begin() + static_cast<std::ptrdiff_t>(first),
                                             names.begin() + static_cast<std::ptrdiff_t>(first + asked));
  task.answers.assign(numbers.begin() + static_cast<std::ptrdiff_t>(first * values),
                      numbers.begin() + static_cast<std::ptrdiff_t>((first + asked) * values));
  shuffle(statements, rng);
  const std::string text = scattered(dense ? std::vector<std::string>() : fillers(units, rng), statements, rng);
  const bool several = task.answers.size() > 1;
  const std::string what = fmt::format("special number{} of {}", several ? "s" : "", enumeration(asked_names));
  task.prompt = fmt::format(
      "Special numbers are mentioned in the text below. Keep them in mind: a question about them follows.\n\n{}\n"
      "Question: What {} the {} mentioned in the text?",
      text, several ? "are all" : "is", what);
  task.lead = fmt::format("\nAnswer: The {} {}", what, several ? "are" : "is");
  task.new_tokens = kNumberTokens * static_cast<int>(task.answers.size());
  return task;
}

/// Five variables, each set from the one before; the first from a number.
Task variables(const std::vector<std::string>& names, const std::string& number, std::int64_t fill, Rng& rng) {
  std::vector<std::string> statements = {fmt::format("Set {} to {}.", names[0], number)};
  for (std::size_t index = 1; index < names.size(); ++index)
    statements.push_back(fmt::format("Set {} to the value of {}.", names[index], names[index - 1]));
  Task task;
  task.prompt = fmt::format("{}\nQuestion: Which {} variables have the value {}?",
                            scattered(fillers(fill, rng), statements, rng), names.size(), number);
  task.lead = "\nAnswer: They are";
  task.answers = names;
  task.new_tokens = kNumberTokens * static_cast<int>(names.size());
  return task;
}

Task variable_tracking(std::int64_t units, Rng& rng) {
  const std::vector<std::string> names = made_words(10, rng), numbers = made_numbers(2, rng);
  const std::vector<std::string> shown(names.begin(), names.begin() + 5), asked(names.begin() + 5, names.end());
  const Task example = variables(shown, numbers[0], 5, rng);
  Task task = variables(asked, numbers[1], units, rng);
  task.prompt = fmt::format(
      "Variables are set in the text below, directly or from one another. Keep track of their values.\n\n{}{} "
      "{}.\n\n{}",
      example.prompt, example.lead, enumeration(shown), task.prompt);
  return task;
}

/// A numbered list in which the first `common` words stand `often` times and the others `seldom` times.
std::string word_list(const std::vector<std::string>& words, std::size_t common, int often, int seldom, Rng& rng) {
  std::vector<std::string> list;
  for (std::size_t word = 0; word < words.size(); ++word)
    list.insert(list.end(), static_cast<std::size_t>(word < common ? often : seldom), words[word]);
  shuffle(list, rng);
  std::string text;
  for (std::size_t index = 0; index < list.size(); ++index) text += fmt::format("{}. {} ", index + 1, list[index]);
  return text;
}

Task common_words(std::int64_t units, std::int64_t length, Rng& rng) {
  constexpr std::size_t kCommon = 10;
  const int often = length < 4096 ? 10 : 30, seldom = length < 4096 ? 1 : 3;
  const std::vector<std::string> shown = made_words(kCommon + 20, rng);
  std::vector<std::string> words = made_words(kCommon + static_cast<std::size_t>(units), rng);
  const std::string question = "\nQuestion: Which ten words stand in the list most often?";
  const std::string lead = "\nAnswer: They are";
  const auto first_ten = [](const std::vector<std::string>& of) {
    return std::vector<std::string>(of.begin(), of.begin() + kCommon);
  };
  Task task;
  task.answers = first_ten(words);
  task.prompt = fmt::format(
      "Below is a numbered list of words, some of which stand in it often. Keep in mind those that do.\n\n{}{}{} "
      "{}.\n\n{}{}",
      word_list(shown, kCommon, 3, 1, rng), question, lead, enumeration(first_ten(shown)),
      word_list(words, kCommon, often, seldom, rng), question);
  task.lead = lead;
  task.new_tokens = kNumberTokens * static_cast<int>(kCommon);
  return task;
}

/// Word of rank r stands ⌊n r⁻² / ζ(2)⌋ times, at least once, until there are n.
Task frequent_words(std::int64_t units, Rng& rng) {
  constexpr std::size_t kAsked = 3;
  constexpr double kZeta2 = 1.6449340668482264;
  const std::int64_t total = units + 40;  // so that the first ranks differ: 24, 6, 2, …
  std::vector<std::int64_t> counts;
  for (std::int64_t sum = 0; sum < total; sum += counts.back()) {
    const auto rank = static_cast<double>(counts.size() + 1);
    const auto share = static_cast<std::int64_t>(static_cast<double>(total) / (rank * rank * kZeta2));
    counts.push_back(std::min(std::max<std::int64_t>(share, 1), total - sum));
  }
  const std::vector<std::string> words = made_words(counts.size(), rng);
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < words.size(); ++rank)
    all.insert(all.end(), static_cast<std::size_t>(counts[rank]), words[rank]);
  shuffle(all, rng);
  Task task;
  task.prompt = fmt::format(
      "Below is a text in an unknown language. Keep in mind which words are used most.\n\n{}\n\n"
      "Question: Which three words are used most often in the text?",
      fmt::join(all, " "));
  task.lead = "\nAnswer: The three words that are used most often are";
  task.answers.assign(words.begin(), words.begin() + kAsked);
  task.new_tokens = kNumberTokens * static_cast<int>(kAsked);
  return task;
}

Task build(RulerTask kind, std::int64_t units, std::int64_t length, std::uint64_t seed) {
  Rng rng(seed);
  switch (kind) {
    case RulerTask::NiahSingle:
      return needles(units, false, 1, 1, 1, rng);
    case RulerTask::NiahMultiKey:
      return needles(units, false, 4, 1, 1, rng);
    case RulerTask::NiahDense:
      return needles(units, true, 0, 1, 1, rng);
    case RulerTask::NiahMultiValue:
      return needles(units, false, 1, 4, 1, rng);
    case RulerTask::NiahMultiQuery:
      return needles(units, false, 4, 1, 4, rng);
    case RulerTask::VariableTracking:
      return variable_tracking(units, rng);
    case RulerTask::CommonWords:
      return common_words(units, length, rng);
    case RulerTask::FrequentWords:
      return frequent_words(units, rng);
  }
  KVQ_ASSERT(false);
  return {};
}

std::vector<RulerTask> chosen_kinds(const std::vector<std::string>& names) {
  const std::vector<std::string>& known = ruler_names();
  std::vector<RulerTask> kinds;
  for (const std::string& name : names == std::vector<std::string>{"all"} ? known : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end())
      fail(ErrorKind::Usage, fmt::format("--ruler {}: unknown; known: all, {}", name, fmt::join(known, ", ")));
    const auto kind = static_cast<RulerTask>(found - known.begin());
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      fail(ErrorKind::Usage, fmt::format("--ruler names {} twice", name));
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace

const std::vector<std::string>& ruler_names() {
  static const std::vector<std::string> names = {"niah-single",     "niah-multikey",   "niah-dense",
                                                 "niah-multivalue", "niah-multiquery", "variable-tracking",
                                                 "common-words",    "frequent-words"};
  return names;
}

Task make_ruler_task(RulerTask kind, const Tokenizer& tokenizer, std::int64_t length, bool chat, bool prepend_bos,
                     std::uint64_t seed) {
  Task task;
  std::int64_t tokens = 0;
  const auto fits = [&](std::int64_t units) {
    task = build(kind, units, length, seed);
    tokens = static_cast<std::int64_t>(task.ids(tokenizer, chat, prepend_bos).size());
    return tokens <= length;
  };
  const std::string& name = ruler_names()[static_cast<std::size_t>(kind)];
  if (!fits(1))
    fail(ErrorKind::Usage, fmt::format("--lengths {}: the shortest prompt of {} has {} tokens", length, name, tokens));
  // Another number of units is another draw; of those that fit, bisection finds one within a unit or so of the longest.
  std::int64_t low = 1, high = 2;
  while (fits(high)) low = high, high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  fits(low);
  task.kind = name;
  task.length = length;
  return task;
}

std::vector<Task> make_ruler_tasks(const RulerOptions& options, const Tokenizer& tokenizer, bool prepend_bos) {
  std::vector<Task> tasks;
  for (const RulerTask kind : chosen_kinds(options.names)) {
    for (const std::int64_t length : options.lengths) {
      for (std::int64_t sample = 0; sample < options.samples; ++sample) {
        const std::uint64_t seed =
            options.seed * 1'000'003 + static_cast<std::uint64_t>(kind) * 100'003 + static_cast<std::uint64_t>(sample);
        tasks.push_back(make_ruler_task(kind, tokenizer, length, options.chat, prepend_bos, seed));
      }
    }
  }
  return tasks;
}

}  // namespace kvq
