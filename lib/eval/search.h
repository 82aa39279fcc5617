#pragma once
// The search for a recipe by what it really costs: whole caches are judged by their KL divergence on held-out text,
// never by the errors of single values. First a ladder of recipes, the same for keys and values; then pairs of its
// rungs, one for keys and one for values, whose bits lie between the last rung that meets the goal and the first that
// does not.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

/// Exactly one of the two is given.
struct SearchGoal {
  std::optional<double> target_kl;    ///< the fewest counted bits whose mean KL (nats) stays within
  std::optional<double> budget_bits;  ///< the least KL whose counted bits per value stay within
  std::string text() const;           ///< "a mean KL of at most 0.01 nats"
};

/// A recipe that was judged.
struct TriedRecipe {
  Recipe recipe;
  double bits = 0;  ///< counted, per value
  double kl = 0;    ///< mean, nats
};

bool meets(const SearchGoal& goal, const TriedRecipe& tried);

/// The best that meets the goal, ties by the other figure; nullopt: none does.
std::optional<std::size_t> best_recipe(const SearchGoal& goal, const std::vector<TriedRecipe>& tried);

/// kvq1.5, kvq2, kvq3, kvq4, then KVQuant's nuq5-1%, nuq6-1%, nuq8-1%: what is tried when nothing else is asked for.
std::vector<Recipe> usual_ladder();

/// Throws Usage for recipes that cannot be rungs: fewer than one, the same twice, oracles, what quantizes nothing or
/// evicts, and different numbers of sinks, since keys of one are put beside values of another.
void check_ladder(const std::vector<Recipe>& ladder);

/// Pairs of different rungs that are worth a try after all rungs were: by nominal bits from those of the rung below the
/// border of what meets the goal up to, but not with, those of the rung above it; at most two rungs apart. `tried`: one
/// for each rung, in the order of `ladder`. Empty where there is no border: all rungs meet the goal, or none.
std::vector<Recipe> pairs_at_border(const SearchGoal& goal, const std::vector<Recipe>& ladder,
                                    const std::vector<TriedRecipe>& tried);

}  // namespace kvq
