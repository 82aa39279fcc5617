#pragma once
// configs/experiments/*.toml: what an experiment asks, and the cells that answer it (docs/experiments.md).

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvq/config/toml_table.h>
#include <kvq/eval/report.h>
#include <kvq/quant/recipe.h>
#include <kvq/quant/weight_scheme.h>

namespace kvq::apps {

struct CalibrationConfig {
  std::string name;
  std::vector<std::string> texts;  ///< labels of --calibration-text; empty: all
  std::int64_t samples = 16, seqlen = 2048;
  std::uint64_t seed = 0;
  std::string query_heads = "joint";
  bool forward_only = false, metrics = false;  ///< as kvq-fisher's
  std::optional<TomlTable> table = {};         ///< that it was read from, for messages; so below
};

/// Every recipe with every calibration on every text; with `weights`, besides, each of these weights alone and with
/// every recipe.
struct CellConfig {
  std::vector<Recipe> recipes;
  std::vector<WeightScheme> weights;
  std::vector<std::string> calibrations, texts;  ///< names and labels; empty: all
  std::string only_layers, only_side;            ///< as on the command line; empty: all
  std::optional<TomlTable> table = {};

  bool uses(const std::string& calibration) const {
    return calibrations.empty() ||
           std::find(calibrations.begin(), calibrations.end(), calibration) != calibrations.end();
  }
};

/// What the caches are asked besides: a grid of hidden numbers, as kvq-eval passkey, or RULER's tasks, as kvq-eval
/// tasks.
struct RetrievalConfig {
  std::vector<std::string> ruler;  ///< kinds of tasks; empty: the grid
  std::vector<std::int64_t> lengths = {1024, 2048};
  std::int64_t depths = 5, trials = 1;  ///< of the grid
  std::int64_t samples = 10;            ///< tasks of each kind and length
  std::uint64_t seed = 0;
  std::string prompt = "raw";
  std::optional<TomlTable> table = {};

  bool is_grid() const { return ruler.empty(); }
};

struct ExperimentConfig {
  std::string title, question;
  std::int64_t seqlen = 2048, windows = 6;
  /// What of each window is a prompt (0: no recipe needs one), and from where on it is judged; as kvq-eval perplexity.
  std::int64_t prompt = 0, judge_from = 0;
  std::vector<CalibrationConfig> calibrations;  ///< at least one
  std::vector<CellConfig> cells;
  std::vector<RetrievalConfig> retrievals;  ///< each asked of all recipes that stand for a whole cache
  std::vector<Claim> claims;
  std::optional<TomlTable> table = {};
};

/// Runs a check that knows nothing of files, and whose messages name options of the command line: says of `key` what
/// they say of the option of that name, behind `lead` ("is"). Without a table the message is as it was. Throws Usage.
void check_key(const std::optional<TomlTable>& table, const std::string& key, const std::string& lead,
               const std::function<void()>& check);

/// Throws Input, and Usage naming file, line and key.
ExperimentConfig read_experiment(const std::filesystem::path& path);

}  // namespace kvq::apps
