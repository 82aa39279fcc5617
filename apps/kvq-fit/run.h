#pragma once
// The work of kvq-fit after its options are read.

#include <vector>

#include "common/tool.h"
#include "kvq-fit/options.h"

#include <kvq/quant/recipe.h>

namespace kvq::apps {

/// Prints each recipe's long form.
void explain(const std::vector<Recipe>& recipes, bool json);
void fit(const Tool& tool, const FitArguments& arguments, const std::vector<Recipe>& recipes, RunContext& context);

}  // namespace kvq::apps
