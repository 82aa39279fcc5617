// kvq-fit: quantizers for any number of recipes from a calibration file.

#include <vector>

#include "common/tool.h"
#include "kvq-fit/options.h"
#include "kvq-fit/run.h"
#include "kvq-fit/weights.h"

#include <kvq/artifacts/recipe_toml.h>

int main(int argc, char** argv) {
  kvq::apps::Tool tool("kvq-fit",
                       "Fits quantizers to a calibration file, one for each recipe; or quantizes a model's weights.");
  kvq::apps::FitArguments arguments;
  kvq::apps::add_options(tool.app(), arguments);
  tool.add_common(tool.app(), {});
  return tool.run(argc, argv, [&](kvq::RunContext& context) {
    kvq::apps::check_kind(arguments);
    if (!arguments.weights.empty()) return kvq::apps::fit_weights(tool, arguments, context);
    std::vector<kvq::Recipe> recipes;
    for (const std::string& argument : arguments.recipes) {
      recipes.push_back(kvq::resolve_recipe(argument));
      if (arguments.metric == "query") recipes.back() = kvq::with_query_metric(recipes.back());
    }
    if (arguments.explain) {
      kvq::apps::explain(recipes, tool.common().json);
    } else {
      kvq::apps::fit(tool, arguments, recipes, context);
    }
  });
}
