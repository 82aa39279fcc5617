#pragma once
// Evaluation results as JSON (schema: docs/report-json.md), Markdown and a table for the terminal.

#include <cstdint>
#include <string>

#include <kvq/eval/passkey.h>
#include <kvq/eval/perplexity.h>
#include <kvq/report/table.h>

namespace kvq {

/// What was judged, for the head of a report. File names only, no folders.
struct ReportSubject {
  std::string model, text;
  std::int64_t text_tokens = 0;
  std::string settings;  ///< resolved options as TOML
};

std::string perplexity_json(const ReportSubject& subject, const PerplexityReport& report);
std::string perplexity_markdown(const ReportSubject& subject, const PerplexityReport& report, double max_kl);
Table perplexity_table(const PerplexityReport& report);
/// One line: the cheapest recipe whose mean KL stays within `max_kl`, or which came closest.
std::string recommendation(const PerplexityReport& report, double max_kl);

std::string passkey_json(const ReportSubject& subject, const std::vector<PasskeyResult>& results);
std::string passkey_markdown(const ReportSubject& subject, const std::vector<PasskeyResult>& results);
/// Rows: caches; columns: lengths; cells: found/trials over all depths.
Table passkey_table(const std::vector<PasskeyResult>& results);

}  // namespace kvq
