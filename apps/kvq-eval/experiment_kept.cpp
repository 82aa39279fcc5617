#include "kvq-eval/experiment_kept.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/eval/report_reader.h>

namespace kvq::apps {

namespace fs = std::filesystem;

ExperimentLock::ExperimentLock(const fs::path& folder) {
  // The folder itself is locked: no file has to be removed at the end.
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    fail(ErrorKind::Io, fmt::format("{}: cannot be opened: {}", folder.string(), std::strerror(errno)));
  // Some network file systems lock no folder: there each step's own journal is what keeps two runs apart.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    fail(ErrorKind::Io, fmt::format("another run is working on '{}'; let it finish or stop it", folder.string()));
  }
}

ExperimentLock::~ExperimentLock() { ::close(descriptor_); }

std::string row_name(const PlannedCell& cell) {
  if (!cell.weights) return short_form(cell.recipe);
  if (cell.recipe.is_baseline()) return short_form(*cell.weights);
  return short_form(cell.recipe) + " + " + short_form(*cell.weights);
}

std::optional<std::string> cache_sha256(const fs::path& quantizer, const Recipe& recipe) {
  if (quantizer.empty()) return recipe.is_baseline() ? "" : sha256_of(recipe_to_toml(recipe));
  if (!fs::exists(quantizer)) return std::nullopt;
  return sha256_of_file(quantizer);
}

ReportDocument read_kept(const fs::path& path) {
  try {
    return read_report(path);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("{}; the experiment makes it again once it is deleted", error.what()));
  }
}

namespace {

class KeptFile {
 public:
  explicit KeptFile(fs::path path) : path_(std::move(path)) {}

  void require(bool holds, const std::string& what) const {
    if (!holds)
      fail(ErrorKind::Mismatch,
           fmt::format("{}: {}; the experiment makes it again once it is deleted", path_.string(), what));
  }
  void require_subject(const ExperimentRun& run, const ReportSubject& subject) const {
    require(subject.model_sha256 == run.inputs.model_sha256,
            fmt::format("is of another model (sha256 {:.12}…), {} is {:.12}…", subject.model_sha256,
                        run.inputs.model.string(), run.inputs.model_sha256));
  }
  void require_row(const std::string& name, const std::string& planned, bool same) const {
    require(same, fmt::format("holds results of '{}', not of '{}'", name, planned));
  }
  void require_sha256(const std::string& there, const std::optional<std::string>& wanted,
                      const std::string& name) const {
    require(!wanted || there == *wanted,
            fmt::format("holds results of another file of '{}' than the experiment's", name));
  }

 private:
  fs::path path_;
};

template <typename Row>
void check_rows(const KeptFile& file, const std::vector<Row>& rows, const PlannedRetrieval& planned) {
  const std::string name = short_form(planned.recipe);
  file.require(rows.size() == 2 && rows.front().name == "none",
               fmt::format("does not hold results of 'none' and '{}'", name));
  file.require_row(rows.back().name, name, rows.back().name == name);
  file.require_sha256(rows.back().sha256, cache_sha256(planned.quantizer, planned.recipe), name);
}

}  // namespace

ReportDocument read_cell(const ExperimentRun& run, const PlannedCell& cell) {
  ReportDocument document = read_kept(cell.result);
  const KeptFile file(cell.result);
  const std::string name = row_name(cell);
  file.require(document.evaluations.size() == 1,
               fmt::format("does not hold the perplexities of '{}' on one text", name));
  const Evaluation& evaluation = document.evaluations.front();
  const std::vector<VariantResult>& rows = evaluation.report.results;
  file.require(rows.size() > 1 && rows.front().name == "none",
               fmt::format("does not hold results of 'none' and '{}'", name));
  file.require_subject(run, evaluation.subject);
  const LabelledText& text = run.inputs.texts[cell.text];
  file.require(evaluation.subject.text_sha256 == text.sha256,
               fmt::format("is of another text than '{}'", text.path.string()));
  const bool whole = cell.only_layers.empty() && cell.only_side.empty();
  const std::optional<std::string> cache = cache_sha256(cell.quantizer, cell.recipe);  // of all rows
  const std::optional<std::string> weights =
      cell.weights ? cache_sha256(cell.weights_file, cell.recipe) : std::optional<std::string>("");
  for (std::size_t index = 1; index < rows.size(); ++index) {
    const VariantResult& row = rows[index];
    file.require_row(row.name, name, whole ? row.name == name : row.name.starts_with(name + " ["));
    file.require_sha256(row.source.sha256, cache, name);
    file.require_sha256(row.weights.sha256, weights, name);
  }
  return document;
}

ReportDocument read_cell(const ExperimentRun& run, const PlannedRetrieval& planned) {
  ReportDocument document = read_kept(planned.result);
  const KeptFile file(planned.result);
  const bool grid = run.config.retrievals[planned.question].is_grid();
  file.require(
      document.evaluations.empty() && document.passkey.has_value() == grid && document.tasks.has_value() != grid,
      fmt::format("does not hold what '{}' was asked", short_form(planned.recipe)));
  if (grid) {
    file.require_subject(run, document.passkey->subject);
    check_rows(file, document.passkey->results, planned);
  } else {
    file.require_subject(run, document.tasks->subject);
    check_rows(file, document.tasks->report.results, planned);
  }
  return document;
}

}  // namespace kvq::apps
