#include "kvq-eval/report_folder.h"

#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/run_folder.h>
#include <kvq/report/csv.h>

namespace kvq::apps {

namespace fs = std::filesystem;

ReportFolder::ReportFolder(fs::path folder, bool force) : folder_(std::move(folder)), force_(force) {
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error)) {
    fail(ErrorKind::Usage, fmt::format("output '{}' is a file; a folder is needed", folder_.string()));
  }
  if (!fs::is_directory(folder_, error)) {
    made_ = fs::create_directory(folder_, error);
    if (!made_)
      fail(ErrorKind::Usage, fmt::format("output '{}' cannot be created: {}", folder_.string(), error.message()));
  }
  // A run that was killed between its reports and the end of its journal: the same run may write them again, and
  // another one is refused by the journal.
  if (fs::exists(journal(), error) && !RunFolder::is_left_over(journal())) force_ = true;
  for (const char* name : {"report.json", "report.md", "report.html", "report.csv"}) AtomicFile(folder_ / name, force_);
}

ReportFolder::~ReportFolder() {
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);  // removes empty folders only
}

void ReportFolder::write(const ReportDocument& document) {
  std::vector<fs::path> written;
  const auto write_file = [&](const char* name, const std::string& content) {
    write_file_atomically(folder_ / name, content, force_);
    written.push_back(folder_ / name);
  };
  // The first table is the report's; others stand beside it under their own names.
  const char* name = "report.csv";
  const auto write_table = [&](const char* own_name, const Table& table) {
    write_file(name ? name : own_name, to_csv(table));
    name = nullptr;
  };
  try {
    write_file("report.html", document_html(document));
    write_file("report.md", document_markdown(document));
    if (!document.evaluations.empty()) write_table("perplexity.csv", perplexity_numbers(document.evaluations));
    if (document.passkey) write_table("passkey.csv", passkey_numbers(document.passkey->results));
    if (document.tasks) write_table("tasks.csv", task_numbers(document.tasks->report));
    write_file("report.json", document_json(document));
  } catch (...) {
    // A part of a report would stand in the way of the next run.
    std::error_code ignored;
    for (const fs::path& path : written) fs::remove(path, ignored);
    throw;
  }
}

}  // namespace kvq::apps
