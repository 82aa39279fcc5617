#pragma once
// Words of the short form for turbo (kvq/vector/turbo_codec.h): rotation=random|hadamard, marginal=sphere|gauss,
// norm=exact|fit|unbiased, qjl, outlier-channels=N, outlier-bits=B, seed=N. The long form has keys of the same names.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/quant/recipe_words.h>
#include <kvq/quant/rounding_recipe.h>

namespace kvq {

inline constexpr Words<bool, 2> kTurboRotationWords = {{{"random", false}, {"hadamard", true}}};  ///< hadamard
inline constexpr Words<Marginal, 2> kMarginalWords = {{{"sphere", Marginal::Sphere}, {"gauss", Marginal::Gauss}}};
inline constexpr Words<NormRule, 3> kNormWords = {
    {{"exact", NormRule::Exact}, {"fit", NormRule::Fit}, {"unbiased", NormRule::Unbiased}}};

/// For messages about unknown words.
inline constexpr std::string_view kKnownTurboWords =
    "rotation=, marginal=, norm=, qjl, outlier-channels=N, outlier-bits=B, seed=N";

/// What is wrong with a side's options, if anything; options of other codebooks must be the default.
std::optional<std::string> turbo_problem(const SideRecipe& side);
/// Throws Usage naming recipe and side.
void check_turbo_shape(const Recipe& recipe, Side which, int head_dim);

/// Applies `name[=argument]`; Refused: `problem` says why.
WordResult take_turbo_word(TurboOptions& options, const std::string& name, const std::string& argument,
                           std::string& problem);
/// Words that differ from the defaults.
void append_turbo_words(std::vector<std::string>& words, const TurboOptions& options);

}  // namespace kvq
