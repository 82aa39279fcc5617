#pragma once
// Texts and reference values that are not part of the project (their licences do not allow it, or they are large).

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace kvq::test {

/// Path of a file of the shared data: $KVQ_SHARED_DATA, or `shared/data` beside the source folder. nullopt where
/// absent.
inline std::optional<std::filesystem::path> shared_data(const std::string& name) {
  const char* folder = std::getenv("KVQ_SHARED_DATA");
  const std::filesystem::path base = folder && *folder
                                         ? std::filesystem::path(folder)
                                         : std::filesystem::path(KVQ_SOURCE_DIR) / ".." / "shared" / "data";
  std::filesystem::path path = base / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

}  // namespace kvq::test
