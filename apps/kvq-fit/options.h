#pragma once
// Options of kvq-fit, and where its results go.

#include <filesystem>
#include <string>
#include <vector>

#include "common/cli_forward.h"

#include <kvq/quant/recipe.h>

namespace kvq::apps {

struct FitArguments {
  std::filesystem::path calib, thresholds, output;
  std::vector<std::string> recipes;
  bool explain = false;
};

void add_options(CLI::App& command, FitArguments& arguments);

/// The file of each recipe: `output` itself for one recipe unless it is a folder, else `output`/slug.h5 (made if
/// missing). Nothing is written. Throws Usage when two recipes are the same, and as AtomicFile for each target.
std::vector<std::filesystem::path> output_files(const std::filesystem::path& output, const std::vector<Recipe>& recipes,
                                                bool force);

}  // namespace kvq::apps
