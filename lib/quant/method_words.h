#pragma once
// Words of the short form that choose groups, the rule for outliers, the zero point and the exact window:
// group=N, rule=threshold|topk, zero=half|integer, recent=N, flush=N, cap=F%. They depend on the axes and ranges, so
// they are gathered first and put into the sides at the end.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

struct MethodWords {
  std::optional<int> group, recent, flush;
  std::optional<OutlierRule> rule;
  std::optional<bool> integer_zero;
  double cap = 0.0;
  bool residual = false;  ///< NamedMethod::residual

  /// False when the word is none of these. `problem`: what is wrong with the argument, if anything.
  bool take(const std::string& name, const std::string& argument, std::string& problem);
  /// Null: the text does not speak of that side. Throws Usage where a word fits no side.
  void apply(SideRecipe* key, SideRecipe* value) const;
};

/// The words of one side, or (`other` given) of both at once; used by short_form().
void add_method_words(std::vector<std::string>& words, const SideRecipe& side, const SideRecipe* other);

/// A number of at most seven digits; nullopt for anything else.
std::optional<int> parse_count(std::string_view text);

}  // namespace kvq
