#include "common/settings.h"

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace kvq::apps {

namespace {

// They say where, how fast and how to report, not what to compute.
const std::set<std::string> kNotStored = {"help",  "version", "config",   "output",  "force",   "json",     "dry-run",
                                          "quiet", "verbose", "log-file", "threads", "explain", "recompute"};

/// A JSON string literal is a valid TOML basic string.
std::string quoted(const std::string& text) {
  // File names may hold any bytes.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string without_folders(const std::string& value) {
  const auto equals = value.find('=');
  const std::string prefix = equals == std::string::npos ? "" : value.substr(0, equals + 1);
  const std::string path = value.substr(prefix.size());
  if (path.find('/') == std::string::npos) return value;
  std::filesystem::path clean(path);
  if (!clean.has_filename()) clean = clean.parent_path();
  return prefix + clean.filename().string();
}

/// Numbers that TOML spells the same way: no leading zeros, digits on both sides of a point.
bool is_number(const std::string& text) {
  static const std::regex number(R"([+-]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?)");
  return std::regex_match(text, number);
}

/// Recipes are no paths, unless they are long forms; their '/' parts keys and values.
bool is_short_recipe(const std::string& option, const std::string& value) {
  return option == "recipe" && !value.ends_with(".toml");
}

std::string scalar(const std::string& option, const std::string& value) {
  if (value == "true" || value == "false" || is_number(value)) return value;
  return quoted(is_short_recipe(option, value) ? value : without_folders(value));
}

/// CLI11 keeps the default of a list as "[a,b]".
std::vector<std::string> list_of_default(std::string text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<std::string> values;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) values.push_back(item);
  return values;
}

}  // namespace

std::string settings_as_toml(const CLI::App& command) {
  std::map<std::string, std::string> lines;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = option->get_lnames().front();
    if (kNotStored.contains(name)) continue;
    // A quantizer stores its own recipe as a dataset of its own; those that were fitted beside it do not concern it.
    if (name == "recipe" && command.get_parent() == nullptr) continue;
    // Files that were made before there was a choice say nothing; nor do those of the CPU since.
    if (name == "device" && (option->count() == 0 || option->as<std::string>() == "cpu")) continue;
    std::vector<std::string> values = option->count() > 0 ? option->reduced_results() : std::vector<std::string>{};
    if (option->count() == 0 && !option->get_default_str().empty()) values = {option->get_default_str()};
    if (values.empty()) continue;
    if (option->get_items_expected_max() > 1 || option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll) {
      if (option->count() == 0) values = list_of_default(values.front());
      std::string list;
      for (const std::string& value : values) list += (list.empty() ? "" : ", ") + scalar(name, value);
      lines[name] = "[" + list + "]";
    } else {
      lines[name] = scalar(name, values.front());
    }
  }
  std::string text;
  for (const auto& [name, value] : lines) text += fmt::format("{} = {}\n", name, value);
  return text;
}

std::string shell_word(const std::string& word) {
  static const std::regex plain(R"([A-Za-z0-9_./:=,+@%^-]+)");
  if (std::regex_match(word, plain)) return word;
  std::string quoted_word = "'";
  for (const char byte : word) quoted_word += byte == '\'' ? "'\\''" : std::string(1, byte);
  return quoted_word + "'";
}

std::string shell_word_by_name(const std::string& word) { return shell_word(without_folders(word)); }

std::string command_as_text(const std::string& program, const CLI::App& command) {
  static const std::set<std::string> silent = {"help",  "version", "config",  "force",   "json",
                                               "quiet", "verbose", "dry-run", "log-file"};
  std::string text = program;
  if (command.get_parent()) text += " " + command.get_name();
  std::string positional;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    if (option->get_lnames().empty()) {
      for (const std::string& value : option->results()) positional += " " + shell_word_by_name(value);
      continue;
    }
    const std::string name = option->get_lnames().front();
    if (silent.contains(name)) continue;
    if (option->get_items_expected_max() == 0) {  // a flag
      text += " --" + name;
      continue;
    }
    for (const std::string& value : option->reduced_results())
      text +=
          fmt::format(" --{} {}", name, is_short_recipe(name, value) ? shell_word(value) : shell_word_by_name(value));
  }
  return text + positional;
}

}  // namespace kvq::apps
