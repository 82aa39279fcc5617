#include <kvq/config/toml_table.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <toml++/toml.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq {

struct TomlTable::Impl {
  std::shared_ptr<toml::table> owner;  ///< the whole document
  const toml::table* table = nullptr;
  std::string origin, prefix;
  std::vector<std::string> known;

  const toml::node* find(const std::string& key) {
    if (std::find(known.begin(), known.end(), key) == known.end()) known.push_back(key);
    return table->get(key);
  }
};

TomlTable TomlTable::parse(const std::string& text, const std::string& origin) {
  auto impl = std::make_shared<Impl>();
  impl->origin = origin;
  try {
    impl->owner = std::make_shared<toml::table>(toml::parse(text));
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::Usage, fmt::format("{}, line {}: {}", origin, error.source().begin.line, error.description()));
  }
  impl->table = impl->owner.get();
  return TomlTable(std::move(impl));
}

TomlTable TomlTable::read(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    fail(ErrorKind::Input, fmt::format("{}: is a folder, a TOML file is needed", path.string()));
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  if (!stream || !(text << stream.rdbuf(), stream.good() || stream.eof())) {
    fail(ErrorKind::Input, fmt::format("{}: cannot be opened for reading", path.string()));
  }
  return parse(text.str(), path.string());
}

void TomlTable::refuse(const std::string& key, const std::string& problem) const {
  const toml::node* node = impl_->table->get(key);
  const std::string line =
      node && node->source().begin.line > 0 ? fmt::format(", line {}", node->source().begin.line) : "";
  fail(ErrorKind::Usage, fmt::format("{}{}: '{}' {}", impl_->origin, line, impl_->prefix + shortened(key), problem));
}

std::optional<std::string> TomlTable::text(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (!node->is_string()) refuse(key, "must be a string in quotes");
  const std::string& text = **node->as_string();
  if (text.find('\0') != std::string::npos) refuse(key, "holds a NUL character");
  return text;
}

std::optional<std::int64_t> TomlTable::integer(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (!node->is_integer()) refuse(key, "must be an integer");
  return **node->as_integer();
}

std::optional<double> TomlTable::number(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  const std::optional<double> value = node->is_number() ? node->value<double>() : std::nullopt;
  if (!value || !std::isfinite(*value)) refuse(key, "must be a finite number");
  return value;
}

bool TomlTable::is_integer(const std::string& key) const {
  const toml::node* node = impl_->table->get(key);
  return node && node->is_integer();
}

std::optional<bool> TomlTable::flag(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (!node->is_boolean()) refuse(key, "must be true or false");
  return **node->as_boolean();
}

std::optional<TomlTable> TomlTable::table(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (!node->is_table()) refuse(key, fmt::format("must be a table: [{}]", impl_->prefix + key));
  auto child = std::make_shared<Impl>(*impl_);
  child->table = node->as_table();
  child->prefix = impl_->prefix + key + ".";
  child->known.clear();
  return TomlTable(std::move(child));
}

std::optional<std::vector<std::string>> TomlTable::texts(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (node->is_string()) return std::vector<std::string>{*text(key)};
  std::vector<std::string> list;
  if (node->is_array()) {
    for (const toml::node& element : *node->as_array()) {
      if (!element.is_string()) refuse(key, "must hold strings in quotes only");
      list.push_back(**element.as_string());
      if (list.back().find('\0') != std::string::npos) refuse(key, "holds a NUL character");
    }
  }
  if (list.empty()) refuse(key, "must be a string in quotes, or an array of them that is not empty");
  return list;
}

std::optional<std::vector<std::int64_t>> TomlTable::integers(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return std::nullopt;
  if (node->is_integer()) return std::vector<std::int64_t>{**node->as_integer()};
  std::vector<std::int64_t> list;
  if (node->is_array()) {
    for (const toml::node& element : *node->as_array()) {
      if (!element.is_integer()) refuse(key, "must hold integers only");
      list.push_back(**element.as_integer());
    }
  }
  if (list.empty()) refuse(key, "must be an integer, or an array of them that is not empty");
  return list;
}

std::vector<TomlTable> TomlTable::tables(const std::string& key) const {
  const toml::node* node = impl_->find(key);
  if (!node) return {};
  const toml::array* array = node->as_array();
  if (!array || array->empty() || !array->is_homogeneous(toml::node_type::table))
    refuse(key, fmt::format("must be tables: [[{}]]", impl_->prefix + key));
  std::vector<TomlTable> list;
  for (const toml::node& element : *array) {
    auto child = std::make_shared<Impl>(*impl_);
    child->table = element.as_table();
    child->prefix = impl_->prefix + fmt::format("{}[{}].", key, list.size());
    child->known.clear();
    list.push_back(TomlTable(std::move(child)));
  }
  return list;
}

void TomlTable::reject_unknown() const {
  for (const auto& [key, node] : *impl_->table) {
    const std::string name(key.str());
    if (std::find(impl_->known.begin(), impl_->known.end(), name) != impl_->known.end()) continue;
    std::string list;
    for (const std::string& known : impl_->known) list += (list.empty() ? "" : ", ") + known;
    refuse(name, fmt::format("is not a known key; known: {}", list));
  }
}

}  // namespace kvq
