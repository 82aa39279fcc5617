#include "kvq-fit/options.h"

#include <map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>

namespace kvq::apps {

namespace fs = std::filesystem;

void add_options(CLI::App& command, FitArguments& arguments) {
  command.add_option("--calib", arguments.calib, "calibration file made by kvq-fisher");
  command.add_option(
      "--thresholds", arguments.thresholds,
      "thresholds file made by kvq-threshold; needed where a side has outliers and a range per channel (nuq3-1%)");
  command
      .add_option("--recipe", arguments.recipes,
                  "what to fit: short forms (nuq3-1%) or TOML files; several are fitted in one pass")
      ->required();
  command.add_option("-o,--output", arguments.output, "quantizer file to write; a folder for several recipes");
  command.add_flag("--explain", arguments.explain, "print the long form of each recipe and stop");
}

std::vector<fs::path> output_files(const fs::path& output, const std::vector<Recipe>& recipes, bool force) {
  std::map<std::string, std::string> known;
  for (const Recipe& recipe : recipes) {
    if (!known.emplace(slug(recipe), short_form(recipe)).second)
      fail(ErrorKind::Usage, fmt::format("--recipe {} is given twice", short_form(recipe)));
  }
  std::vector<fs::path> files;
  if (recipes.size() == 1 && !fs::is_directory(output)) {
    if (!output.has_filename())
      fail(ErrorKind::Usage, fmt::format("-o {}: the folder does not exist", output.string()));
    files = {output};
  } else {
    if (fs::exists(output) && !fs::is_directory(output)) {
      fail(ErrorKind::Usage,
           fmt::format("-o {}: is a file, but {} recipes need a folder", output.string(), recipes.size()));
    }
    for (const Recipe& recipe : recipes) files.push_back(output / (slug(recipe) + ".h5"));
  }
  if (recipes.size() > 1 && !fs::exists(output)) {
    fs::path folder = output.has_filename() ? output : output.parent_path();
    const AtomicFile can_be_made(folder, false);
  } else {
    for (const fs::path& file : files) const AtomicFile can_be_written(file, force);
  }
  return files;
}

}  // namespace kvq::apps
