#pragma once
// GGUF version 2 and 3: metadata and tensors, everything validated before use (sizes, offsets, types, duplicates).

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <kvq/core/mapped_file.h>
#include <kvq/formats/tensor_source.h>

namespace kvq {

/// A metadata value. Integers of every width are widened; arrays are homogeneous.
using GgufValue = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

class GgufFile final : public TensorSource {
 public:
  /// Throws Input (missing), Format (damaged, unknown version or tensor type; names offset or key and value).
  explicit GgufFile(const std::filesystem::path& path);
  ~GgufFile() override;

  const std::filesystem::path& path() const;
  const GgufValue* metadata(const std::string& key) const;

  /// Typed access; `require_…` throws Format naming the key when it is missing or of another type.
  std::int64_t require_int(const std::string& key) const;
  std::string require_string(const std::string& key) const;
  std::optional<std::int64_t> find_int(const std::string& key) const;
  std::optional<double> find_double(const std::string& key) const;
  std::optional<bool> find_bool(const std::string& key) const;
  std::optional<std::string> find_string(const std::string& key) const;
  const std::vector<std::string>* find_strings(const std::string& key) const;
  const std::vector<double>* find_doubles(const std::string& key) const;
  const std::vector<std::int64_t>* find_ints(const std::string& key) const;

  const TensorInfo* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  void read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                 std::span<float> out) const override;
  void release(const std::string& name) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// True when the file starts with GGUF's magic (never by suffix). Throws Input when it cannot be read.
bool is_gguf(const std::filesystem::path& path);

}  // namespace kvq
