#pragma once
// report.json back into what it was written from, and several reports into one.

#include <filesystem>
#include <string>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/eval/report.h>

namespace kvq {

/// Throws Input when the file cannot be read, Format (naming file and key) for what is no report, is damaged, or was
/// written by a version that did not store hashes.
ReportDocument read_report(const std::filesystem::path& path);

struct NamedReport {
  std::string name;  ///< the file, as messages call it
  ReportDocument document;
};

/// All caches of all reports side by side, in the order given; the baseline once. A cache that stands in several
/// reports (same quantizer file, weights, cache and parts) is taken from the first; different ones of one name get
/// their report's name in brackets. Experiments keep their texts apart: evaluations of one text are merged, others
/// follow. With `one_text`, reports of different texts are refused. Throws Mismatch, naming both files and what
/// differs: model, tokenizer, text, window length or number, dtype, BOS, the baseline's losses; of passkey grids:
/// lengths, depths, trials and keys.
ReportDocument merge_reports(const std::vector<NamedReport>& reports, bool one_text, Log& log);

}  // namespace kvq
