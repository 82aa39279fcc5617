#pragma once
// What an experiment keeps in its folder: one run at a time works on it, and what a file of it holds is checked against
// what was planned, since files are copied, edited and merged by hand.

#include <filesystem>
#include <optional>
#include <string>

#include "kvq-eval/experiment_run.h"

namespace kvq::apps {

/// Held while it lives. A run that is killed leaves nothing behind.
class ExperimentLock {
 public:
  /// Throws Io when another run works on the folder, which must be there.
  explicit ExperimentLock(const std::filesystem::path& folder);
  ~ExperimentLock();
  ExperimentLock(const ExperimentLock&) = delete;
  ExperimentLock& operator=(const ExperimentLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Name of a cell's row where one calibration is all there is.
std::string row_name(const PlannedCell& cell);
/// What rows of this cache have for a SHA-256: the quantizer file's, or the long form's of a recipe without one.
/// Nothing when the file is no longer there.
std::optional<std::string> cache_sha256(const std::filesystem::path& quantizer, const Recipe& recipe);

/// A report that an earlier step left. Throws what read_report() throws, with the way out.
ReportDocument read_kept(const std::filesystem::path& path);
/// The same of a finished cell. Throws Mismatch, besides, when it holds another's results.
ReportDocument read_cell(const ExperimentRun& run, const PlannedCell& cell);
ReportDocument read_cell(const ExperimentRun& run, const PlannedRetrieval& planned);

}  // namespace kvq::apps
