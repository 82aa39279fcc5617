#include "kvq-eval/report_folder.h"

#include <system_error>

#include <fmt/format.h>

#include <kvq/core/error.h>
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
  for (const char* name : {"report.json", "report.md", "report.html", "report.csv"}) AtomicFile(folder_ / name, force_);
}

ReportFolder::~ReportFolder() {
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);  // removes empty folders only
}

void ReportFolder::write(const ReportDocument& document) {
  write_file_atomically(folder_ / "report.html", document_html(document), force_);
  write_file_atomically(folder_ / "report.md", document_markdown(document), force_);
  const std::string passkey = document.passkey ? to_csv(passkey_numbers(document.passkey->results)) : "";
  const bool both = document.passkey && !document.evaluations.empty();
  write_file_atomically(folder_ / "report.csv",
                        document.evaluations.empty() ? passkey : to_csv(perplexity_numbers(document.evaluations)),
                        force_);
  if (both) write_file_atomically(folder_ / "passkey.csv", passkey, force_);
  write_file_atomically(folder_ / "report.json", document_json(document), force_);
}

}  // namespace kvq::apps
