#include <kvq/eval/report.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/plural.h>

namespace kvq {

namespace {

/// Four significant digits, as people compare them; exact zero stays "0".
std::string digits(double value) { return value == 0 ? "0" : fmt::format("{:#.4g}", value); }

/// Hundredths; below one, three significant digits, since a short window of a small model must not read as nothing.
std::string megabytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) * 1e-6;
  return value < 1 ? fmt::format("{:#.3g}", value) : fmt::format("{:.2f}", value);
}

const VariantResult* least_damage(const PerplexityReport& report) {
  const VariantResult* best = nullptr;
  for (std::size_t variant = 1; variant < report.results.size(); ++variant) {
    const VariantResult& result = report.results[variant];
    if (result.counted && !result.weights.used() && (!best || result.kl_mean < best->kl_mean)) best = &result;
  }
  return best;
}

std::string head(const std::string& title, const ReportSubject& subject) {
  return fmt::format("# {}\n\nModel `{}`, text `{}` ({}).\n\n", title, subject.model, subject.text,
                     plural(subject.text_tokens, "token"));
}

std::string settings_section(const ReportSubject& subject) {
  return fmt::format("\n## Settings\n\n```toml\n{}```\n", subject.settings);
}

/// Why there is nothing to count.
std::string uncounted(const VariantResult& result) { return result.parts.all() ? "oracle" : "part"; }

constexpr std::ptrdiff_t kWeightsColumn = 5;  ///< of perplexity_table(), where there are quantized weights

std::string percent(double share) { return fmt::format("{:g} %", std::round(share * 1e6) / 1e4); }

}  // namespace

std::string judged_text(const PerplexityReport& report) {
  std::string text = plural(report.seqlen - 1 - report.span.from, "predicted token") + " each";
  if (report.span.from > 0) text += fmt::format(", those that follow the first {}", plural(report.span.from, "token"));
  if (report.span.prompt > 0)
    text += fmt::format("; the first {} are the prompt for caches that evict at its end",
                        plural(report.span.prompt, "token"));
  return text;
}

Table perplexity_table(const PerplexityReport& report) {
  Table table;
  table.header = {"cache", "bits", "counted", "at 32K", "MB", "ppl", "ΔNLL", "±", "KL", "KL p99", "top-1 %", "time"};
  const bool weights = std::any_of(report.results.begin(), report.results.end(),
                                   [](const VariantResult& result) { return result.weights.used(); });
  if (weights) table.header.insert(table.header.begin() + kWeightsColumn, "w bits");
  for (const VariantResult& result : report.results) {
    const bool baseline = &result == &report.results.front();
    const std::string none = "–";
    table.rows.push_back({
        result.name,
        fmt::format("{:g}", std::round(100 * result.bits_nominal) / 100),
        result.counted ? fmt::format("{:.2f}", result.bits_counted) : uncounted(result),
        result.counted ? fmt::format("{:.2f}", result.bits_counted_32k) : uncounted(result),
        result.counted ? megabytes(result.cache_bytes) : none,
        fmt::format("{:#.5g}", result.ppl),
        baseline ? none : digits(result.delta_nll),
        baseline || !result.delta_nll_se ? none : fmt::format("{:.2g}", *result.delta_nll_se),
        baseline ? none : digits(result.kl_mean),
        baseline ? none : digits(result.kl_p99),
        baseline ? none : fmt::format("{:.2f}", 100 * result.top1),
        fmt::format("{:.2f}×", result.relative_time),
    });
    if (weights) {
      auto& row = table.rows.back();
      row.insert(row.begin() + kWeightsColumn,
                 result.weights.used() ? fmt::format("{:.2f}", result.weights.bits_counted) : none);
    }
  }
  return table;
}

std::string recommendation(const PerplexityReport& report, double max_kl) {
  if (const VariantResult* best = recommend(report, max_kl)) {
    return fmt::format(
        "Recommendation: {} — the cheapest of these within a mean KL of {:g} nats: {:.2f} bits per value counted "
        "({:.2f} at 32K), KL {}, ΔNLL {}, {:.1f}× smaller than fp16.",
        best->name, max_kl, best->bits_counted, best->bits_counted_32k, digits(best->kl_mean), digits(best->delta_nll),
        16.0 / best->bits_counted);
  }
  if (const VariantResult* closest = least_damage(report)) {
    if (closest->kl_mean <= max_kl) {
      return fmt::format(
          "Recommendation: none of these within a mean KL of {:g} nats is smaller than fp16 at {}; {} takes "
          "{:.2f} bits per value ({:.2f} at 32K). Judge with longer windows.",
          max_kl, plural(report.seqlen, "token"), closest->name, closest->bits_counted, closest->bits_counted_32k);
    }
    return fmt::format(
        "Recommendation: none of these stays within a mean KL of {:g} nats; {} comes closest with {} at {:.2f} "
        "bits per value. Try more bits, or raise --max-kl.",
        max_kl, closest->name, digits(closest->kl_mean), closest->bits_counted);
  }
  const bool weights = std::any_of(report.results.begin(), report.results.end(),
                                   [](const VariantResult& result) { return result.weights.used(); });
  if (weights) return "No quantizer was given: what stands here is the cost of the weights alone.";
  if (report.results.size() > 1) return "Nothing to recommend: what stands here are parts of caches, not caches.";
  return "No quantizer was given: this is the unquantized model alone.";
}

std::string answer(const PerplexityReport& report, double max_kl) {
  const VariantResult* best = recommend(report, max_kl);
  if (!best) return recommendation(report, max_kl);
  const double more = 100 * std::expm1(best->delta_nll);
  const std::string error = best->delta_nll_se ? fmt::format(" ± {:.2g}", *best->delta_nll_se) : "";
  return fmt::format(
      "{:.2f} bits per value ({}) cost {}{:.{}f} % perplexity (ΔNLL {}{}), KL {}; the cache is {:.1f}× smaller than "
      "fp16.",
      best->bits_counted, best->name, more < 0 ? "−" : "+", std::abs(more), std::abs(more) < 9.95 ? 1 : 0,
      digits(best->delta_nll), error, digits(best->kl_mean), 16.0 / best->bits_counted);
}

std::string perplexity_markdown(const ReportSubject& subject, const PerplexityReport& report, double max_kl) {
  std::string text = head("What a quantized KV cache costs", subject);
  text += fmt::format("{} of {}, {}.\n\n", plural(report.windows, "window"), plural(report.seqlen, "token"),
                      judged_text(report));
  text += to_markdown(perplexity_table(report));
  text +=
      "\n- *bits*: nominal bits of the codes; *counted*: all that the cache occupies (codes, ranges, outliers, "
      "indices, slack, "
      "sinks, padding) × 8 / number of K and V values, at this window length and at 32K tokens; *MB*: one window's "
      "cache.\n"
      "- *ΔNLL*: mean loss minus the unquantized one's, nats per token; *±*: standard error over windows, absent below "
      "five.\n"
      "- *KL*: mean divergence of the next-token distribution from the unquantized one's, nats; *KL p99*: its 99th "
      "percentile "
      "over tokens; *top-1*: how often the most likely token is the same.\n"
      "- *time*: transformer layers of this pass relative to the unquantized pass (simulated caches quantize and "
      "dequantize).\n"
      "- Caches that evict (`evict=`) are counted by what they hold at the window's end; where they choose at the end "
      "of "
      "a prompt, at 32K a prompt of that length has just been read.\n"
      "- *oracle*: a range taken from the evaluated window itself; it bounds what a method could do and is no cache; "
      "*part*: "
      "only the named layers or sides are quantized.\n";
  const bool weights = std::any_of(report.results.begin(), report.results.end(),
                                   [](const VariantResult& result) { return result.weights.used(); });
  if (weights) {
    text +=
        "- *w bits*: counted bits per weight of the blocks (codes, codebooks, exact weights with their indices); – "
        "where "
        "they are the model's own. All differences are from the unquantized model with the unquantized cache.\n";
  }
  text += "\n";
  text += recommendation(report, max_kl) + "\n";
  return text + settings_section(subject);
}

Table passkey_table(const std::vector<PasskeyResult>& results) {
  std::vector<std::int64_t> lengths;
  for (const PasskeyCell& cell : results.front().cells) {
    if (std::find(lengths.begin(), lengths.end(), cell.length) == lengths.end()) lengths.push_back(cell.length);
  }
  Table table;
  table.header = {"cache"};
  for (std::int64_t length : lengths) table.header.push_back(std::to_string(length));
  for (const PasskeyResult& result : results) {
    std::vector<std::string> row = {result.name};
    for (std::int64_t length : lengths) {
      int found = 0, trials = 0;
      for (const PasskeyCell& cell : result.cells) {
        if (cell.length != length) continue;
        found += cell.found;
        trials += cell.trials;
      }
      row.push_back(fmt::format("{}/{}", found, trials));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string passkey_markdown(const ReportSubject& subject, const std::vector<PasskeyResult>& results) {
  std::string text =
      fmt::format("# Passkey retrieval\n\nModel `{}`. Keys found / prompts, by prompt length.\n\n", subject.model);
  text += to_markdown(passkey_table(results)) + "\n## By depth\n\n";
  Table table;
  table.header = {"cache", "length", "prompt tokens", "depth", "found"};
  for (const PasskeyResult& result : results) {
    for (const PasskeyCell& cell : result.cells) {
      table.rows.push_back({result.name, std::to_string(cell.length), std::to_string(cell.prompt_tokens),
                            percent(cell.depth), fmt::format("{}/{}", cell.found, cell.trials)});
    }
  }
  return text + to_markdown(table) + settings_section(subject);
}

std::string document_markdown(const ReportDocument& document) {
  std::string text;
  if (!document.title.empty()) text += fmt::format("# {}\n\n{}\n\n", document.title, document.question);
  for (const Evaluation& evaluation : document.evaluations)
    text += perplexity_markdown(evaluation.subject, evaluation.report, document.max_kl) + "\n";
  if (document.passkey) text += passkey_markdown(document.passkey->subject, document.passkey->results) + "\n";
  if (document.tasks) text += tasks_markdown(*document.tasks) + "\n";
  if (!document.claims.empty()) text += "## Claims\n\n" + to_markdown(claims_table(document)) + "\n";
  if (!document.commands.empty()) {
    text += "## Commands\n\n";
    for (const std::string& command : document.commands) text += "    " + command + "\n";
  }
  text.erase(text.find_last_not_of('\n') + 1);
  return text + "\n";
}

}  // namespace kvq
