#pragma once
// The long form of a recipe: `[key]` and `[value]` tables. DESIGN §3.

#include <filesystem>
#include <string>

#include <kvq/quant/recipe.h>

namespace kvq {

std::string recipe_to_toml(const Recipe& recipe);
/// `origin` names the text in messages. Throws Usage: unknown key or word lists the known ones.
Recipe recipe_from_toml(const std::string& toml, const std::string& origin);
/// A command-line argument: a short form, or a path that ends in .toml.
Recipe resolve_recipe(const std::string& argument);

}  // namespace kvq
