#pragma once
// A Hugging Face model folder: config.json, tokenizer files, safetensors (one file, or shards with an index).

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <kvq/formats/tensor_source.h>

namespace kvq {

class HfFolder final : public TensorSource {
 public:
  /// Throws Input (no folder, no config.json, no *.safetensors: says which), Format (damaged; names file and reason).
  explicit HfFolder(const std::filesystem::path& folder);
  ~HfFolder() override;

  const std::filesystem::path& path() const;
  const nlohmann::json& config() const;
  /// Files that identify the model: config.json and the safetensors files, sorted by name.
  std::vector<std::filesystem::path> model_files() const;

  const TensorInfo* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  void read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                 std::span<float> out) const override;
  void release(const std::string& name) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Parses a JSON file strictly: duplicate keys, trailing bytes and invalid UTF-8 are Format errors that name the file.
nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace kvq
