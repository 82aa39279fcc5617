#include <kvq/quant/eviction_words.h>

#include <charconv>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/method_words.h>

namespace kvq {

namespace {

std::optional<double> parse_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || !(value >= 0)) return std::nullopt;
  return value;
}

std::optional<double> share_of(const std::string& text) {
  return text.ends_with('%') ? parse_percent(std::string_view(text).substr(0, text.size() - 1)) : std::nullopt;
}

}  // namespace

bool EvictionWords::take(const std::string& name, const std::string& argument, std::string& problem) {
  const auto choose = [&](const auto& words, auto& target) {
    const auto found = find_word(words, argument);
    if (found) target = *found;
    if (!found) problem = fmt::format("{} can be: {}", name, list_words(words));
  };
  const auto count = [&](std::optional<int>& target) {
    target = parse_count(argument);
    if (!target) problem = fmt::format("{} takes a number, at most {}", name, 1 << 20);
  };
  if (name == "evict") {
    choose(kEvictionWords, rule);
  } else if (name == "budget") {
    if (argument.ends_with('%')) {
      share = share_of(argument);
    } else {
      tokens = parse_count(argument);
    }
    if (!(share && *share > 0) && !(tokens && *tokens > 0))
      problem = "budget takes a number of tokens (512), at most 1048576, or a share of them (25%)";
  } else if (name == "first") {
    count(first);
  } else if (name == "positions") {
    choose(kPositionWords, cache_positions);
  } else if (name == "heavy") {
    heavy = share_of(argument);
    if (!heavy) problem = "heavy takes a share of the budget such as 50%";
  } else if (name == "observe") {
    count(observe);
  } else if (name == "pool") {
    choose(kPoolingWords, pooling);
  } else if (name == "kernel") {
    count(kernel);
  } else if (name == "beta") {
    beta = parse_number(argument);
    if (!beta) problem = "beta takes a number";
  } else {
    return false;
  }
  any = true;
  return true;
}

EvictionRecipe EvictionWords::recipe() const {
  if (!any) return {};
  if (rule == EvictionRule::None)
    fail(ErrorKind::Usage, fmt::format("words for eviction need evict=, which can be: {}", list_words(kEvictionWords)));
  EvictionRecipe eviction = usual_eviction(rule);
  if (!tokens && !share) fail(ErrorKind::Usage, "evict= needs budget=, tokens (512) or a share of them (25%)");
  eviction.tokens = tokens.value_or(0);
  eviction.share = share.value_or(0.0);
  eviction.first = first.value_or(eviction.first);
  eviction.cache_positions = cache_positions.value_or(eviction.cache_positions);
  eviction.heavy = heavy.value_or(eviction.heavy);
  eviction.observe = observe.value_or(eviction.observe);
  eviction.pooling = pooling.value_or(eviction.pooling);
  eviction.kernel = kernel.value_or(eviction.kernel);
  eviction.beta = beta.value_or(eviction.beta);
  return eviction;
}

std::vector<std::string> eviction_words(const EvictionRecipe& eviction) {
  if (eviction.rule == EvictionRule::None) return {};
  const EvictionRecipe usual = usual_eviction(eviction.rule);
  std::vector<std::string> words = {"evict=" + word_of(kEvictionWords, eviction.rule)};
  words.push_back(eviction.tokens != 0 ? fmt::format("budget={}", eviction.tokens)
                                       : fmt::format("budget={}%", format_percent(eviction.share)));
  if (eviction.first != usual.first) words.push_back(fmt::format("first={}", eviction.first));
  if (eviction.cache_positions != usual.cache_positions)
    words.push_back("positions=" + word_of(kPositionWords, eviction.cache_positions));
  if (eviction.heavy != usual.heavy) words.push_back(fmt::format("heavy={}%", format_percent(eviction.heavy)));
  if (eviction.observe != usual.observe) words.push_back(fmt::format("observe={}", eviction.observe));
  if (eviction.pooling != usual.pooling) words.push_back("pool=" + word_of(kPoolingWords, eviction.pooling));
  if (eviction.kernel != usual.kernel) words.push_back(fmt::format("kernel={}", eviction.kernel));
  if (eviction.beta != usual.beta) words.push_back(fmt::format("beta={}", eviction.beta));
  return words;
}

}  // namespace kvq
