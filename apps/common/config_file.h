#pragma once
// --config FILE.toml: the options of the command line as TOML. CLI11's own reader knows neither quoting nor arrays well
// enough (a '#', a comma or a space in a path ends the value), so the file goes through a TOML parser.

#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace kvq::apps {

/// Top-level keys are options of the command that was chosen; a table named like a subcommand holds options of that
/// one. Throws CLI::ConfigError naming file, line and key: bad syntax, unknown key (lists the known ones), a value of
/// another type, a date or nested table.
class TomlConfig final : public CLI::ConfigTOML {
 public:
  explicit TomlConfig(const CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  /// What is wrong with a value is found by those who know the option. Puts "--config FILE, line 3: " before a problem
  /// whose first --option has its value from the file.
  std::string with_place(const std::string& problem) const;

 private:
  const CLI::App& app_;
  mutable std::map<std::string, std::string> places_;  ///< by option
};

}  // namespace kvq::apps
