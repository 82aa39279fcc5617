#pragma once
// Evaluation results as JSON (schema: docs/report-json.md), Markdown, HTML, CSV, and tables for the terminal.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvq/eval/passkey.h>
#include <kvq/eval/perplexity.h>
#include <kvq/eval/tasks.h>
#include <kvq/report/table.h>

namespace kvq {

/// What was judged, for the head of a report. File names only, no folders.
struct ReportSubject {
  std::string model, text;
  std::int64_t text_tokens = 0;
  std::string settings;  ///< resolved options as TOML
  std::string model_sha256 = {}, tokenizer_sha256 = {}, text_sha256 = {};
  std::string dtype = {}, bos = {};  ///< bos: "window" or "never"
  std::string command = {};          ///< as it was given, files by name
  std::string producer = {};         ///< program and version
};

struct Evaluation {
  ReportSubject subject;
  PerplexityReport report;
};

struct PasskeyEvaluation {
  ReportSubject subject;
  std::vector<PasskeyResult> results;
};

struct TaskEvaluation {
  ReportSubject subject;  ///< `text` names the file of tasks, if there is one
  TaskReport report;
};

/// What an experiment set out to test: that one cache does less damage than another.
struct Claim {
  std::string statement, better, worse;  ///< names of caches
};

/// A claim on one text: mean over windows of the loss of `worse` minus that of `better`, nats per token, and its paired
/// standard error.
struct ClaimResult {
  double difference = 0;
  std::optional<double> standard_error;
  /// "holds", "does not hold" (more than two standard errors from 0), "undecided", or "too few windows".
  std::string verdict() const;
};
/// Nothing when the evaluation lacks one of the two.
std::optional<ClaimResult> judge(const Claim& claim, const PerplexityReport& report);

/// All that one report holds.
struct ReportDocument {
  std::string title, question;  ///< of an experiment; empty otherwise
  std::vector<Evaluation> evaluations;
  std::optional<PasskeyEvaluation> passkey;
  std::optional<TaskEvaluation> tasks;
  std::vector<Claim> claims;
  std::vector<std::string> commands;  ///< of an experiment or comparison: how its parts were made, in order
  double max_kl = 0.1;                ///< mean KL, in nats, that the recommended recipe may cost
};

std::string perplexity_json(const ReportSubject& subject, const PerplexityReport& report);
std::string passkey_json(const ReportSubject& subject, const std::vector<PasskeyResult>& results);
/// One evaluation: perplexity_json() with the keys of the document besides; one passkey grid alone: passkey_json();
/// tasks alone: theirs; otherwise an object that holds them (docs/report-json.md).
std::string document_json(const ReportDocument& document);

std::string perplexity_markdown(const ReportSubject& subject, const PerplexityReport& report, double max_kl);
std::string passkey_markdown(const ReportSubject& subject, const std::vector<PasskeyResult>& results);
std::string tasks_markdown(const TaskEvaluation& evaluation);
std::string document_markdown(const ReportDocument& document);

/// All numbers in full, one row per text and cache.
Table perplexity_numbers(const std::vector<Evaluation>& evaluations);
/// One row per cache, length and depth.
Table passkey_numbers(const std::vector<PasskeyResult>& results);

/// One row per cache, kind of task and length.
Table task_numbers(const TaskReport& report);

/// A page that needs nothing else: no network, no scripts.
std::string document_html(const ReportDocument& document);

Table perplexity_table(const PerplexityReport& report);
/// How many predictions of each window were judged, and which: "2047 predicted tokens each".
std::string judged_text(const PerplexityReport& report);
/// Every claim on every text that has both caches.
Table claims_table(const ReportDocument& document);
/// What became of the claims, which is the answer to an experiment's question: "Holds: …. Undecided: …."; empty where
/// none could be judged.
std::string claims_answer(const ReportDocument& document);
/// One line: the cheapest recipe whose mean KL stays within `max_kl`, or which came closest.
std::string recommendation(const PerplexityReport& report, double max_kl);
/// The same for people who want the figure first: "3.39 bits per value cost +8.4 % perplexity …".
std::string answer(const PerplexityReport& report, double max_kl);
/// Rows: caches; columns: lengths; cells: found/trials over all depths.
Table passkey_table(const std::vector<PasskeyResult>& results);
/// Rows: kinds of tasks and lengths; columns: caches.
Table task_table(const TaskReport& report);
/// What its cells are, in a sentence or two.
const char* task_legend();

}  // namespace kvq
