#include <kvq/quant/method_words.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

namespace {

/// The first field of the two sides that is not zero.
int first_of(const SideRecipe& side, const SideRecipe* other, int SideRecipe::*field) {
  return side.*field != 0 || !other ? side.*field : other->*field;
}

}  // namespace

std::optional<int> parse_count(std::string_view text) {
  int count = 0;
  const auto end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, count);
  if (text.empty() || text.size() > 7 || result.ec != std::errc() || result.ptr != end || count < 0)
    return std::nullopt;
  return count;
}

bool MethodWords::take(const std::string& name, const std::string& argument, std::string& problem) {
  const auto choose = [&](const auto& words, auto& target) {
    target = find_word(words, argument);
    if (!target) problem = fmt::format("{} can be: {}", name, list_words(words));
    return true;
  };
  if (name == "rule") return choose(kRuleWords, rule);
  if (name == "zero") return choose(kZeroWords, integer_zero);
  std::optional<int>* number = name == "group"    ? &group
                               : name == "recent" ? &recent
                               : name == "flush"  ? &flush
                                                  : nullptr;
  if (!number) return false;
  *number = parse_count(argument);
  if (!*number) problem = fmt::format("{} takes a number, at most {}", name, 1 << 20);
  return true;
}

void MethodWords::apply(SideRecipe* key, SideRecipe* value) const {
  std::vector<SideRecipe*> sides;
  for (SideRecipe* side : {key, value}) {
    if (side) sides.push_back(side);
  }
  const auto give = [&](const char* word, const std::string& need, const auto& fits, const auto& change) {
    bool any = false;
    for (SideRecipe* side : sides) {
      if (fits(*side)) change(*side), any = true;
    }
    if (!any) fail(ErrorKind::Usage, fmt::format("{} needs {}", word, need));
  };
  const auto always = [](const SideRecipe&) { return true; };
  if (group) {
    give(
        "group", "axis channel-group or token-group", [](const SideRecipe& s) { return is_grouped(s.axis); },
        [&](SideRecipe& s) { s.group = *group; });
  }
  if (integer_zero) give("zero", "", always, [&](SideRecipe& s) { s.integer_zero = *integer_zero; });
  if (rule) {
    give(
        "rule", "outliers (int3-1%)", [](const SideRecipe& s) { return s.outliers > 0.0; },
        [&](SideRecipe& s) { s.rule = canonical_rule(s, *rule); });
  }
  if (cap > 0.0) {
    give(
        "cap", "outliers by calibrated thresholds (range=static or rule=threshold)",
        [](const SideRecipe& s) {
          return s.outliers > 0.0 && outlier_rule(s) == OutlierRule::Threshold && s.range != RangeKind::Window;
        },
        [&](SideRecipe& s) { s.cap = cap; });
  }
  if (recent && residual) {
    if (*recent == 0) fail(ErrorKind::Usage, "recent=0; KIVI has a residual of at least one group");
    if (key) key->flush = *recent == key->group ? 0 : *recent;
    if (value) value->recent = *recent;
  } else if (recent) {
    give("recent", "", always, [&](SideRecipe& s) { s.recent = *recent; });
  }
  if (flush) {
    if (*flush == 0) fail(ErrorKind::Usage, "flush=0; at least one token is quantized at a time");
    give("flush", "", always, [&](SideRecipe& s) { s.flush = *flush == usual_flush(s) ? 0 : *flush; });
  }
}

void add_method_words(std::vector<std::string>& words, const SideRecipe& side, const SideRecipe* other) {
  const bool blocks = is_block_format(side.codebook);
  if (const int group = first_of(side, other, &SideRecipe::group); group != 0 && group != kUsualGroup && !blocks)
    words.push_back(fmt::format("group={}", group));
  const OutlierRule rule = side.rule != OutlierRule::Usual || !other ? side.rule : other->rule;
  if (rule != OutlierRule::Usual) words.push_back("rule=" + word_of(kRuleWords, rule));
  if (side.integer_zero) words.emplace_back("zero=integer");
  if (const int recent = first_of(side, other, &SideRecipe::recent); recent != 0)
    words.push_back(fmt::format("recent={}", recent));
  if (const int flush = first_of(side, other, &SideRecipe::flush); flush != 0)
    words.push_back(fmt::format("flush={}", flush));
}

}  // namespace kvq
