#pragma once
// Finished windows on disk, so that an interrupted evaluation goes on where it stopped. One file per window in
// `<folder>`; written whole or not at all. A journal of other settings is replaced when it is opened.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <kvq/eval/comparison.h>

namespace kvq {

/// What one window contributes for one variant.
struct WindowRecord {
  WindowComparison comparison;
  std::int64_t cache_bytes = 0;
  double seconds = 0;
};

class WindowJournal {
 public:
  /// `identity` names model, text, settings and quantizers. Throws Io.
  WindowJournal(std::filesystem::path folder, const std::string& identity);
  /// All variants of a window, or nothing when it has not been finished (or its file is damaged).
  std::optional<std::vector<WindowRecord>> load(std::int64_t window, std::size_t variants) const;
  void store(std::int64_t window, const std::vector<WindowRecord>& records) const;
  /// Removes the journal: the report is complete.
  void remove() const;

 private:
  std::filesystem::path file_of(std::int64_t window) const;
  std::filesystem::path folder_;
};

}  // namespace kvq
