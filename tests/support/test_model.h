#pragma once
// The real model (SmolLM2-135M-Instruct, Q4_1) that scripts/quickstart fetches.

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace kvq::test {

/// $KVQ_TEST_MODEL, or the fetched file in the build area. nullopt where absent.
inline std::optional<std::filesystem::path> test_model() {
  const char* chosen = std::getenv("KVQ_TEST_MODEL");
  std::filesystem::path path =
      chosen && *chosen ? std::filesystem::path(chosen)
                        : std::filesystem::path(KVQ_SOURCE_DIR) / "build/deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

}  // namespace kvq::test
