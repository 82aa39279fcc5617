#pragma once
// The folder that -o names: report.json and report.md, and the journal of a run that is not finished.

#include <filesystem>
#include <memory>
#include <string>

#include <kvq/core/atomic_file.h>

namespace kvq::apps {

class ReportFolder {
 public:
  /// Makes the folder (its parent must exist) and checks that both reports can be written, before any work.
  /// Throws Usage when a report is there already and not `force`.
  ReportFolder(std::filesystem::path folder, bool force);
  /// An empty folder that this run made goes away again when no report was written.
  ~ReportFolder();
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;

  std::filesystem::path journal() const { return folder_ / ".journal"; }
  void write(const std::string& json, const std::string& markdown);

 private:
  std::filesystem::path folder_;
  bool force_, made_ = false;
};

}  // namespace kvq::apps
