#pragma once
// Reading TOML with the strictness of a command line: every key is asked for by name and type, and a key that nobody
// asked for is an error that lists the known ones.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvq {

/// One table. Copies share the record of what was asked for. All errors are Usage and begin with the origin: file or
/// whatever the text is called, and the line where there is one.
class TomlTable {
 public:
  /// Throws Usage on a syntax error or a duplicate key.
  static TomlTable parse(const std::string& text, const std::string& origin);
  /// Throws Input when the file cannot be read; else as parse.
  static TomlTable read(const std::filesystem::path& path);

  /// nullopt when the key is absent; Usage when it has another type (says which is needed).
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;  ///< an integer will do; finite
  /// Whether it is there and written without a point: 1, not 1.0. Does not count as asked for.
  bool is_integer(const std::string& key) const;
  std::optional<bool> flag(const std::string& key) const;
  std::optional<TomlTable> table(const std::string& key) const;
  /// An array of strings, not empty; a single string is one of them.
  std::optional<std::vector<std::string>> texts(const std::string& key) const;
  /// An array of integers, not empty; a single integer is one of them.
  std::optional<std::vector<std::int64_t>> integers(const std::string& key) const;
  /// `[[key]]`, one table each; none when the key is absent.
  std::vector<TomlTable> tables(const std::string& key) const;

  /// Call once everything has been asked for. Throws Usage naming the first key that is not known.
  void reject_unknown() const;

  /// Throws Usage: "ORIGIN, line 3: 'key.bits' problem".
  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const;

 private:
  struct Impl;
  explicit TomlTable(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace kvq
