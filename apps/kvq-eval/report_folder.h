#pragma once
// The folder that -o names: the reports, and the journal of a run that is not finished.

#include <filesystem>

#include <kvq/core/atomic_file.h>
#include <kvq/eval/report.h>

namespace kvq::apps {

class ReportFolder {
 public:
  /// Makes the folder (its parent must exist) and checks that all reports can be written, before any work.
  /// Throws Usage when a report is there already and not `force`.
  ReportFolder(std::filesystem::path folder, bool force);
  /// An empty folder that this run made goes away again when no report was written.
  ~ReportFolder();
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;

  std::filesystem::path journal() const { return folder_ / ".journal"; }
  /// report.html, report.md, report.csv (passkey.csv besides, where there is a table of both kinds), and report.json as
  /// the last: who finds that finds all.
  void write(const ReportDocument& document);

 private:
  std::filesystem::path folder_;
  bool force_, made_ = false;
};

}  // namespace kvq::apps
