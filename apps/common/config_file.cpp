#include "common/config_file.h"

#include <istream>
#include <string>

#include <fmt/format.h>
#include <toml++/toml.h>

#include <kvq/core/shortened.h>

namespace kvq::apps {

namespace {

std::string place(const std::string& file, const toml::source_region& where) {
  return fmt::format("--config {}, line {}: ", file, where.begin.line);
}

[[noreturn]] void refuse(const std::string& file, const toml::source_region& where, const std::string& problem) {
  throw CLI::ConfigError(place(file, where) + problem);
}

std::string options_of(const CLI::App& command) {
  std::string list;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || option->get_lnames().empty()) continue;
    list += (list.empty() ? "" : ", ") + option->get_lnames().front();
  }
  return list;
}

/// A value as it would be written on the command line.
std::string argument(const std::string& file, const std::string& key, const toml::node& node) {
  if (const auto* text = node.as_string()) {
    if (text->get().find('\0') != std::string::npos)
      refuse(file, node.source(), fmt::format("'{}' holds a NUL character", key));
    return text->get();
  }
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  refuse(file, node.source(), fmt::format("'{}' must be a string, number, true, false, or an array of these", key));
}

/// CLI11 would read 64.0 as 64 and "64" as well, and take any number for a flag.
void check_type(const std::string& file, const CLI::Option& option, const std::string& key, const toml::node& node) {
  if (option.get_items_expected_max() == 0) {
    const auto* times = node.as_integer();
    const bool counted = key == "verbose" && times && times->get() >= 0 && times->get() <= 2;
    if (!node.is_boolean() && !counted)
      refuse(file, node.source(),
             fmt::format("'{}' must be true or false{}", key, key == "verbose" ? ", or 0, 1 or 2" : ""));
    return;
  }
  const std::string type = option.get_type_name();
  const bool whole = type.starts_with("INT") || type.starts_with("UINT");
  const bool size = type.find("SIZE") != std::string::npos;  // "80GB"
  if (node.is_boolean()) refuse(file, node.source(), fmt::format("'{}' must be a value, not true or false", key));
  if (type.starts_with("TEXT") && node.is_number())
    refuse(file, node.source(), fmt::format("'{}' must be a string in quotes", key));
  if (whole && node.is_floating_point())
    refuse(file, node.source(), fmt::format("'{}' must be a whole number, written without a point", key));
  if ((whole || type.starts_with("FLOAT")) && !size && node.is_string())
    refuse(file, node.source(), fmt::format("'{}' must be a number, not in quotes", key));
}

struct Reader {
  const std::string& file;
  std::vector<CLI::ConfigItem> items;
  std::map<std::string, std::string> places;

  void read_option(const CLI::App& command, const std::vector<std::string>& parents, const std::string& key,
                   const toml::node& node) {
    const CLI::Option* option = command.get_option_no_throw("--" + key);
    if (!option || !option->get_configurable()) {
      refuse(file, node.source(),
             fmt::format("'{}' is not an option of {}; known: {}", shortened(key), command.get_name(),
                         options_of(command)));
    }
    CLI::ConfigItem item;
    item.parents = parents;
    item.name = key;
    if (const auto* array = node.as_array()) {
      if (option->get_expected_max() <= 1 && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw) {
        refuse(file, node.source(), fmt::format("'{}' takes one value, not an array", key));
      }
      for (const toml::node& element : *array) {
        check_type(file, *option, key, element);
        item.inputs.push_back(argument(file, key, element));
      }
      if (item.inputs.empty()) refuse(file, node.source(), fmt::format("'{}' is an empty array", key));
    } else {
      check_type(file, *option, key, node);
      item.inputs.push_back(argument(file, key, node));
    }
    items.push_back(std::move(item));
    if (option->empty()) places["--" + key] = place(file, node.source());  // else the command line wins
  }
};

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  const auto file = app_.get_config_ptr()->as<std::string>();
  const std::vector<CLI::App*> chosen = app_.get_subcommands();
  const CLI::App& command = chosen.empty() ? app_ : *chosen.front();
  std::vector<std::string> path;
  if (&command != &app_) path.push_back(command.get_name());
  Reader reader{file, {}, {}};
  try {
    const toml::table document = toml::parse(input, file);
    for (const auto& [key, node] : document) {
      const std::string name(key.str());
      const auto* table = node.as_table();
      if (!table) {
        reader.read_option(command, path, name, node);
        continue;
      }
      const auto named = [&](const CLI::App* candidate) { return candidate->get_name() == name; };
      if (app_.get_subcommands(named).empty()) {
        refuse(file, node.source(), fmt::format("[{}] is not a command of {}", shortened(name), app_.get_name()));
      }
      // What is for another command is checked as well, and not used.
      const CLI::App& owner = *app_.get_subcommands(named).front();
      Reader unused{file, {}, {}};
      Reader& into = &owner == &command ? reader : unused;
      for (const auto& [option, value] : *table) into.read_option(owner, path, std::string(option.str()), value);
    }
  } catch (const toml::parse_error& error) {
    refuse(file, error.source(), std::string(error.description()));
  }
  places_ = std::move(reader.places);
  return std::move(reader.items);
}

std::string TomlConfig::with_place(const std::string& problem) const {
  const std::size_t begin = problem.find("--");
  std::string option = problem.starts_with("-o ") ? "--output" : "";
  if (option.empty() && begin != std::string::npos)
    option = problem.substr(begin, problem.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", begin) - begin);
  const auto found = places_.find(option);
  return found == places_.end() ? problem : found->second + problem;
}

}  // namespace kvq::apps
