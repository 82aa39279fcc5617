#pragma once
// Finished windows on disk, so that an interrupted evaluation goes on where it stopped. One file per window, written
// whole or not at all.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <kvq/core/run_folder.h>
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
  /// `identity` names model, text, settings and quantizers. Throws what RunFolder throws.
  WindowJournal(const std::filesystem::path& folder, const RunIdentity& identity, bool force)
      : folder_(folder, identity, "window-", force) {}
  /// All variants of a window, or nothing when it has not been finished (or its file is damaged).
  std::optional<std::vector<WindowRecord>> load(std::int64_t window, std::size_t variants) const;
  void store(std::int64_t window, const std::vector<WindowRecord>& records) const;
  /// Removes the journal: the report is complete.
  void remove() { folder_.remove(); }

 private:
  RunFolder folder_;
};

}  // namespace kvq
