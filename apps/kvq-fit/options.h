#pragma once
// Options of kvq-fit, and where its results go.

#include <filesystem>
#include <string>
#include <vector>

#include "common/cli_forward.h"

namespace kvq::apps {

struct FitArguments {
  std::filesystem::path calib, thresholds, output;
  std::vector<std::string> recipes;
  std::filesystem::path model, weight_fisher;
  std::vector<std::string> weights;  ///< schemes
  bool explain = false;
  std::string metric = "fisher";  ///< query: all recipes do without gradients
};

void add_options(CLI::App& command, FitArguments& arguments);

/// Throws Usage unless it is either recipes or weights that are asked for, with the options that go with them.
void check_kind(const FitArguments& arguments);

/// What is fitted: a recipe or a scheme of weights.
struct FitName {
  std::string name, slug;
};

/// The file of each: `output` itself for one unless it is a folder, else `output`/slug.h5 (made if missing). Nothing is
/// written. None without an output, which a plan may lack. `flag` is the option that they were given with. Throws Usage
/// when two are the same, and as AtomicFile for each target.
std::vector<std::filesystem::path> output_files(const std::filesystem::path& output, const std::vector<FitName>& fits,
                                                const std::string& flag, bool force);

/// All files of a run or none: a set that is half there would be in the way of the next try.
class WrittenTogether {
 public:
  void make_folder(const std::filesystem::path& path);
  void add(const std::filesystem::path& file) { files_.push_back(file); }
  void complete() { complete_ = true; }
  ~WrittenTogether();

 private:
  std::vector<std::filesystem::path> files_;
  std::filesystem::path folder_;  ///< if this run made it
  bool complete_ = false;
};

}  // namespace kvq::apps
