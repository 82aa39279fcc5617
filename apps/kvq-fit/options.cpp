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
  command.add_option("--recipe", arguments.recipes,
                     "what to fit: short forms (nuq3-1%) or TOML files; several are fitted in one pass");
  command
      .add_option("--weights", arguments.weights,
                  "quantize the model's weights instead: w4-s0.45% is 4 bits with 0.45 % exact; several in one pass")
      ->expected(1)
      ->take_all();
  command.add_option("--model", arguments.model, "with --weights: the GGUF file or Hugging Face folder");
  command.add_option("--weight-fisher", arguments.weight_fisher, "with --weights: file made by kvq-fisher --weights");
  command
      .add_option(
          "--metric", arguments.metric,
          "fisher: recipes as they are; query: none uses gradients, but metric=query and weights=query where it "
          "would (for files of kvq-fisher --forward-only)")
      ->check(CLI::IsMember({"fisher", "query"}))
      ->capture_default_str();
  command.add_option("-o,--output", arguments.output,
                     "quantizer file to write (needed unless --dry-run); a folder for several recipes");
  command.add_flag("--explain", arguments.explain, "print the long form of each recipe and stop");
}

void check_kind(const FitArguments& arguments) {
  const auto refuse = [](bool given, const char* option, const char* kind) {
    if (given) fail(ErrorKind::Usage, fmt::format("{} goes with {} only", option, kind));
  };
  if (arguments.recipes.empty() == arguments.weights.empty())
    fail(ErrorKind::Usage, "either --recipe (how caches are quantized) or --weights (how weights are) is required");
  if (arguments.weights.empty()) {
    refuse(!arguments.model.empty(), "--model", "--weights");
    refuse(!arguments.weight_fisher.empty(), "--weight-fisher", "--weights");
    return;
  }
  refuse(!arguments.calib.empty(), "--calib", "--recipe");
  refuse(!arguments.thresholds.empty(), "--thresholds", "--recipe");
  refuse(arguments.explain, "--explain", "--recipe");
  refuse(arguments.metric != "fisher", "--metric", "--recipe");
  if (arguments.model.empty()) fail(ErrorKind::Usage, "--model is missing: the model whose weights are quantized");
  if (arguments.weight_fisher.empty())
    fail(ErrorKind::Usage, "--weight-fisher is missing: the file that kvq-fisher --weights writes");
}

std::vector<fs::path> output_files(const fs::path& output, const std::vector<FitName>& fits, const std::string& flag,
                                   bool force) {
  std::map<std::string, std::string> known;
  for (const FitName& fit : fits) {
    if (!known.emplace(fit.slug, fit.name).second)
      fail(ErrorKind::Usage, fmt::format("{} {} is given twice", flag, fit.name));
  }
  std::vector<fs::path> files;
  if (output.empty()) return files;
  if (fits.size() == 1 && !fs::is_directory(output)) {
    if (!output.has_filename())
      fail(ErrorKind::Usage, fmt::format("-o {}: the folder does not exist", output.string()));
    files = {output};
  } else {
    if (fs::exists(output) && !fs::is_directory(output)) {
      fail(ErrorKind::Usage,
           fmt::format("-o {}: is a file, but {} of {} need a folder", output.string(), fits.size(), flag));
    }
    for (const FitName& fit : fits) files.push_back(output / (fit.slug + ".h5"));
  }
  if (fits.size() > 1 && !fs::exists(output)) {
    fs::path folder = output.has_filename() ? output : output.parent_path();
    const AtomicFile can_be_made(folder, false);
  } else {
    for (const fs::path& file : files) const AtomicFile can_be_written(file, force);
  }
  return files;
}

void WrittenTogether::make_folder(const fs::path& path) {
  if (fs::create_directories(path)) folder_ = path;
}

WrittenTogether::~WrittenTogether() {
  if (complete_) return;
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
  if (!folder_.empty()) fs::remove(folder_, ignored);
}

}  // namespace kvq::apps
