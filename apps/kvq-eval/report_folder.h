#pragma once
// The folder that -o names: the reports, and the journal of a run that is not finished.

#include <exception>
#include <filesystem>
#include <string>

#include "common/tool.h"

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
  /// report.html, report.md, report.csv (passkey.csv and tasks.csv besides, where there are several tables), and
  /// report.json as the last: who finds that finds all.
  void write(const ReportDocument& document);

 private:
  std::filesystem::path folder_;
  bool force_, made_ = false;
};

/// The end of an evaluation: reports into the folder and `text` to stdout, which is printed also where the disk refuses
/// the reports; the journal is kept then. Folder and journal may be null. Throws Io.
template <class Journal>
void publish(ReportFolder* folder, Journal* journal, const ReportDocument& document, const std::string& text) {
  std::exception_ptr problem;
  try {
    if (folder) folder->write(document);
    if (journal) journal->remove();
  } catch (...) {
    problem = std::current_exception();
  }
  print_result(text);
  if (problem) std::rethrow_exception(problem);
}

}  // namespace kvq::apps
