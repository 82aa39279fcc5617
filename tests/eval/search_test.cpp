// The choice among judged recipes and the pairs that are tried, against a brute force over all pairs.
#include <algorithm>
#include <cmath>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/eval/search.h>
#include <kvq/quant/footprint.h>

using namespace kvq;

namespace {

std::vector<Recipe> recipes(const std::vector<std::string>& names) {
  std::vector<Recipe> result;
  for (const std::string& name : names) result.push_back(parse_recipe(name));
  return result;
}

/// Damage as halving with every 0.6 bits of the keys and every 0.5 of the values; counted bits 0.4 above nominal ones.
TriedRecipe judged(const Recipe& recipe) {
  const double key = code_bits(recipe.key), value = code_bits(recipe.value);
  return {recipe, 0.5 * (key + value) + 0.4, std::exp2(-key / 0.6) + 0.5 * std::exp2(-value / 0.5)};
}

std::vector<TriedRecipe> judged(const std::vector<Recipe>& all) {
  std::vector<TriedRecipe> result;
  for (const Recipe& recipe : all) result.push_back(judged(recipe));
  return result;
}

std::vector<std::string> names(const std::vector<Recipe>& all) {
  std::vector<std::string> result;
  for (const Recipe& recipe : all) result.push_back(short_form(recipe));
  return result;
}

}  // namespace

TEST_CASE("The best recipe is the cheapest within a KL, or the one with least KL within a budget") {
  const std::vector<TriedRecipe> tried = {{parse_recipe("nuq2"), 2.4, 0.3},
                                          {parse_recipe("nuq3"), 3.4, 0.05},
                                          {parse_recipe("int3"), 3.4, 0.04},
                                          {parse_recipe("nuq4"), 4.4, 0.01}};
  CHECK(best_recipe({0.3, {}}, tried) == 0);
  CHECK(best_recipe({0.05, {}}, tried) == 2);  // as cheap as nuq3, less damage
  CHECK(best_recipe({0.02, {}}, tried) == 3);
  CHECK_FALSE(best_recipe({0.009, {}}, tried));
  CHECK(best_recipe({{}, 5.0}, tried) == 3);
  CHECK(best_recipe({{}, 3.4}, tried) == 2);
  CHECK(best_recipe({{}, 2.4}, tried) == 0);
  CHECK_FALSE(best_recipe({{}, 2.3}, tried));
}

TEST_CASE("Pairs are tried between the rungs where the goal is just met") {
  const std::vector<Recipe> ladder = recipes({"nuq4-1%", "nuq1-1%", "nuq2-1%", "nuq3-1%"});  // in any order
  const std::vector<TriedRecipe> tried = judged(ladder);
  // Met from 3 bits on, not by 2: sums of 4 to 5 bits.
  const double between = 0.5 * (tried[2].kl + tried[3].kl);
  CHECK(names(pairs_at_border({between, {}}, ladder, tried)) ==
        std::vector<std::string>{"K=nuq1-1%/V=nuq3-1%", "K=nuq2-1%/V=nuq3-1%", "K=nuq3-1%/V=nuq1-1%",
                                 "K=nuq3-1%/V=nuq2-1%"});
  // A budget between the two is the same border.
  CHECK(names(pairs_at_border({{}, 2.9}, ladder, tried)) == names(pairs_at_border({between, {}}, ladder, tried)));
  // No border, no pairs.
  CHECK(pairs_at_border({10.0, {}}, ladder, tried).empty());
  CHECK(pairs_at_border({1e-9, {}}, ladder, tried).empty());
  CHECK(pairs_at_border({{}, 100.0}, ladder, tried).empty());
  CHECK(pairs_at_border({{}, 0.1}, ladder, tried).empty());
}

TEST_CASE("Rungs and pairs find what a search through all pairs finds") {
  const std::vector<Recipe> ladder = recipes({"nuq1", "nuq2", "nuq3", "nuq4", "nuq5", "nuq6"});
  std::vector<Recipe> all;
  for (const Recipe& key : ladder) {
    for (const Recipe& value : ladder) {
      Recipe pair = key;
      pair.value = value.value;
      all.push_back(pair);
    }
  }
  const std::vector<TriedRecipe> everything = judged(all);
  for (const SearchGoal& goal : {SearchGoal{0.1, {}}, SearchGoal{0.02, {}}, SearchGoal{0.004, {}}, SearchGoal{{}, 3.0},
                                 SearchGoal{{}, 3.95}, SearchGoal{{}, 5.0}}) {
    std::vector<TriedRecipe> tried = judged(ladder);
    for (const TriedRecipe& pair : judged(pairs_at_border(goal, ladder, tried))) tried.push_back(pair);
    CHECK(tried.size() < 14);  // of 36
    const auto found = best_recipe(goal, tried), truth = best_recipe(goal, everything);
    REQUIRE((found && truth));
    INFO(goal.text() << ": " << short_form(tried[*found].recipe) << " for " << short_form(everything[*truth].recipe));
    if (goal.target_kl) {
      CHECK(tried[*found].bits == Approx(everything[*truth].bits));
    } else {
      CHECK(tried[*found].kl == Approx(everything[*truth].kl));
    }
  }
}

TEST_CASE("What cannot be a rung is refused by name") {
  const auto refusal = [](const std::vector<std::string>& ladder) -> std::string {
    try {
      check_ladder(recipes(ladder));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal({"nuq3", "kvq2"}).empty());
  CHECK_THAT(refusal({"none"}), ContainsSubstring("quantizes nothing"));
  CHECK_THAT(refusal({"nuq3", "nuq3:evict=h2o,budget=50%"}), ContainsSubstring("drops tokens"));
  CHECK_THAT(refusal({"int3:range=window"}), ContainsSubstring("no cache"));
  CHECK_THAT(refusal({"nuq3", "nuq2", "nuq3"}), ContainsSubstring("twice"));
  CHECK_THAT(refusal({"nuq3", "nuq2:sink=4"}), ContainsSubstring("sink=4 beside sink=1"));
  CHECK_NOTHROW(check_ladder(usual_ladder()));
}
