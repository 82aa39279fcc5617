#include <algorithm>

#include <fmt/format.h>

#include <kvq/eval/report_charts.h>
#include <kvq/report/html.h>

namespace kvq {

namespace {

constexpr std::size_t kMostHistograms = 12;  ///< caches whose histograms are drawn
constexpr std::size_t kMostPartRows = 8;     ///< partly quantized caches that stand in the main table

std::string paragraph(const std::string& text, const char* css_class = nullptr) {
  return css_class ? fmt::format("<p class=\"{}\">{}</p>\n", css_class, escape_html(text))
                   : fmt::format("<p>{}</p>\n", escape_html(text));
}

std::string details(const std::string& summary, const std::string& html) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_html(summary), html);
}

std::string preformatted(const std::string& text) {
  return fmt::format("<pre><code>{}</code></pre>\n", escape_html(text));
}

const char* kLegend =
    "<details><summary>What the columns mean</summary><ul>"
    "<li><b>bits</b>: nominal bits of the codes; <b>counted</b>: all that the cache occupies (codes, ranges, outliers, "
    "indices, "
    "slack, sinks, padding) × 8 / number of K and V values, at this window length and at 32K tokens; <b>MB</b>: one "
    "window's cache.</li>"
    "<li><b>ΔNLL</b>: mean loss minus the unquantized one's, nats per token; <b>±</b>: standard error over windows, "
    "absent below "
    "five.</li>"
    "<li><b>KL</b>: mean divergence of the next-token distribution from the unquantized one's, nats; <b>KL p99</b>: "
    "its 99th "
    "percentile over tokens; <b>top-1</b>: how often the most likely token is the same.</li>"
    "<li><b>w bits</b>: counted bits per weight of the blocks, where weights are quantized too; all differences are "
    "from the "
    "unquantized model with the unquantized cache.</li>"
    "<li><b>time</b>: transformer layers of this pass relative to the unquantized pass.</li>"
    "<li><b>oracle</b>: a range taken from the evaluated window itself: no cache; <b>part</b>: only the named layers "
    "or sides are "
    "quantized.</li></ul></details>\n";

std::string tables(const PerplexityReport& report) {
  PerplexityReport whole = report;
  std::erase_if(whole.results, [](const VariantResult& result) { return !result.parts.all(); });
  if (report.results.size() - whole.results.size() <= kMostPartRows)
    return html_table(perplexity_table(report), "") + kLegend;
  PerplexityReport parts = report;
  std::erase_if(parts.results,
                [&](const VariantResult& result) { return result.parts.all() && result.name != "none"; });
  std::string html = whole.results.size() > 1 ? html_table(perplexity_table(whole), "") : "";
  html += details(fmt::format("Table of the {} caches of which only a part is quantized", parts.results.size() - 1),
                  html_table(perplexity_table(parts), ""));
  return html + kLegend;
}

std::string rate_section(const PerplexityReport& report) {
  const Chart kl = rate_distortion(report, Damage::Kl);
  if (kl.series.empty()) return "";
  return "<h3>Rate and distortion</h3>\n<div class=\"charts\">\n" + chart_figure(kl) +
         chart_figure(rate_distortion(report, Damage::DeltaNll)) + "</div>\n" +
         paragraph("Bars are one standard error over windows. Lower and further left is better.", "note");
}

std::string position_section(const PerplexityReport& report) {
  if (report.position_edges.size() < 3) return "";
  const Chart nll = by_position(report, PerPosition::Nll), kl = by_position(report, PerPosition::Kl);
  std::size_t whole = 0;
  for (std::size_t index = 1; index < report.results.size(); ++index)
    whole += report.results[index].parts.all() ? 1 : 0;
  std::string html = "<h3>By position</h3>\n<div class=\"charts\">\n" + chart_figure(nll);
  if (!kl.series.empty()) html += chart_figure(kl);
  html += "</div>\n";
  if (whole > kMostCurves)
    html += paragraph(fmt::format("The first {} caches; report.json has all.", kMostCurves), "note");
  return html;
}

std::string histogram_section(const PerplexityReport& report) {
  std::string html;
  std::size_t shown = 0, left_out = 0;
  for (const VariantResult& result : report.results) {
    std::string sides;
    for (const Side side : kSides) {
      std::string figures;
      for (std::size_t layer = 0; layer < result.layers.size(); ++layer) {
        if (const auto histogram = side_histogram(result, static_cast<int>(layer), side))
          figures += histogram_figure(*histogram);
      }
      if (figures.empty()) continue;
      sides += fmt::format("<h3>{}</h3>\n<div class=\"charts small\">\n{}</div>\n",
                           side == Side::Key ? "Keys" : "Values", figures);
    }
    if (sides.empty()) continue;
    if (shown == kMostHistograms) {
      ++left_out;
      continue;
    }
    ++shown;
    html += details(result.name, sides);
  }
  if (html.empty()) return "";
  std::string text = fmt::format(
      "Unquantized keys and values of the first {} tokens, centred and scaled by their range, so that thresholds are "
      "at ±1 "
      "(dashed); the levels of the codebook are the ticks below.",
      std::min(kDistributionTokens, report.seqlen));
  if (left_out > 0) text += fmt::format(" {} more caches are in report.json.", left_out);
  return "<h3>Values, levels and thresholds by layer</h3>\n" + paragraph(text, "note") + html;
}

std::string evaluation_section(const Evaluation& evaluation, double max_kl, bool several) {
  const PerplexityReport& report = evaluation.report;
  std::string html =
      fmt::format("<h2>{}</h2>\n", several ? escape_html("On " + evaluation.subject.text) : "What it costs");
  if (several) html += paragraph(answer(report, max_kl), "answer");
  html += paragraph(fmt::format("Text {}: {} windows of {} tokens, {}; {} tokens in all.", evaluation.subject.text,
                                report.windows, report.seqlen, judged_text(report), evaluation.subject.text_tokens),
                    "about");
  html += tables(report);
  if (!several) html += paragraph(recommendation(report, max_kl));
  html += rate_section(report);
  if (const auto map = sensitivity(report)) html += "<h3>Sensitivity of layers</h3>\n" + heat_map_figure(*map);
  html += position_section(report);
  if (const auto map = outlier_rates(report)) html += "<h3>Outliers</h3>\n" + heat_map_figure(*map);
  return html + histogram_section(report);
}

std::string passkey_section(const PasskeyEvaluation& passkey) {
  std::string html = "<h2>Passkey retrieval</h2>\n" +
                     paragraph(
                         "A number hidden in filler text must come back in the greedy continuation. Keys found / "
                         "prompts, over all depths:") +
                     html_table(passkey_table(passkey.results), "") + "<div class=\"charts\">\n";
  for (const PasskeyResult& result : passkey.results) html += heat_map_figure(passkey_grid(result));
  return html + "</div>\n";
}

std::string tasks_section(const TaskReport& report) {
  return "<h2>Long-context tasks</h2>\n" + paragraph(task_legend()) + html_table(task_table(report), "");
}

/// The evaluation that a page without windows is about.
const ReportSubject* lone_subject(const ReportDocument& document) {
  if (document.passkey) return &document.passkey->subject;
  return document.tasks ? &document.tasks->subject : nullptr;
}

std::string provenance_section(const ReportDocument& document) {
  std::vector<std::string> commands = document.commands;
  std::string settings;
  Table hashes{{"what", "sha256"}, {}};
  const auto add = [&](const std::string& what, const std::string& sha256) {
    const std::vector<std::string> row = {what, sha256};
    if (!sha256.empty() && std::find(hashes.rows.begin(), hashes.rows.end(), row) == hashes.rows.end())
      hashes.rows.push_back(row);
  };
  std::string producer;
  const auto add_subject = [&](const ReportSubject& subject, const std::string& text) {
    if (producer.empty()) producer = subject.producer;
    add("model " + subject.model, subject.model_sha256);
    add("tokenizer", subject.tokenizer_sha256);
    if (!text.empty()) add("text " + text, subject.text_sha256);
    if (document.commands.empty() && !subject.command.empty()) commands.push_back(subject.command);
    settings += preformatted(subject.settings);
  };
  for (const Evaluation& evaluation : document.evaluations) add_subject(evaluation.subject, evaluation.subject.text);
  if (document.passkey) add_subject(document.passkey->subject, "");
  if (document.tasks) add_subject(document.tasks->subject, document.tasks->subject.text);
  for (const Evaluation& evaluation : document.evaluations) {
    for (const VariantResult& result : evaluation.report.results) {
      add(fmt::format("quantizer {}", result.source.file), result.source.sha256);
      for (const auto& [name, sha256] : result.source.parents)
        add(fmt::format("{} of {}", name, result.source.file), sha256);
      add(fmt::format("weights {}", result.weights.file), result.weights.sha256);
      for (const auto& [name, sha256] : result.weights.parents)
        add(fmt::format("{} of {}", name, result.weights.file), sha256);
    }
  }
  std::string list;
  for (const std::string& command : commands) list += command + "\n";
  std::string html =
      "<h2>How this was made</h2>\n" +
      paragraph(producer.empty() ? "" : "By " + producer + ". Files are given by name, without folders.", "about");
  if (!list.empty()) html += preformatted(list);
  html += details("Hashes", fmt::format("<div class=\"hashes\">{}</div>", html_table(hashes, "")));
  return html + details(document.commands.empty() ? "Settings" : "Settings of the first run", settings);
}

}  // namespace

std::string document_html(const ReportDocument& document) {
  const bool several = document.evaluations.size() > 1;
  std::string title = document.title;
  if (title.empty())
    title = !document.evaluations.empty() ? "What a quantized KV cache costs"
            : document.passkey            ? "Passkey retrieval"
                                          : "Long-context tasks";
  std::string body = fmt::format("<h1>{}</h1>\n", escape_html(title));
  const ReportSubject* subject =
      document.evaluations.empty() ? lone_subject(document) : &document.evaluations.front().subject;
  if (subject)
    body += paragraph(
        fmt::format("Model {}{}", subject->model, subject->dtype.empty() ? "" : ", computed in " + subject->dtype),
        "about");
  if (!document.question.empty()) body += paragraph(document.question);
  const std::string outcome = claims_answer(document);
  if (!outcome.empty()) body += paragraph(outcome, "answer");
  if (document.evaluations.size() == 1)
    body +=
        paragraph(answer(document.evaluations.front().report, document.max_kl), outcome.empty() ? "answer" : nullptr);
  if (!document.claims.empty()) {
    body +=
        "<h2>Claims</h2>\n" +
        paragraph(
            "Differences of losses on the same windows; a claim holds or fails where the difference is more than two "
            "paired standard errors from zero.",
            "note") +
        html_table(claims_table(document), "");
  }
  const std::vector<HeatMap> matrices = calibration_matrices(document.evaluations);
  if (!matrices.empty()) {
    body += "<h2>Calibration and text</h2>\n<div class=\"charts\">\n";
    for (const HeatMap& map : matrices) body += heat_map_figure(map);
    body += "</div>\n";
  }
  for (const Evaluation& evaluation : document.evaluations)
    body += evaluation_section(evaluation, document.max_kl, several);
  if (document.passkey) body += passkey_section(*document.passkey);
  if (document.tasks) body += tasks_section(document.tasks->report);
  return html_page(title, body + provenance_section(document));
}

}  // namespace kvq
