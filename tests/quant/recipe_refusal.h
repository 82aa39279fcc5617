#pragma once
// What parse_recipe says to recipes that cannot be.

#include <string>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/recipe.h>

namespace kvq::test {

/// The message; "accepted" where there is none.
inline std::string refusal(const std::string& recipe) {
  try {
    parse_recipe(recipe);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace kvq::test
