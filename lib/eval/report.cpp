#include <kvq/eval/report.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/plural.h>

namespace kvq {

namespace {

using Json = nlohmann::ordered_json;

/// File names may hold any bytes, and a greedy continuation may end inside a multi-byte character.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json optional_number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

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
    if (result.counted && (!best || result.kl_mean < best->kl_mean)) best = &result;
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

std::string percent(double share) { return fmt::format("{:g} %", std::round(share * 1e6) / 1e4); }

}  // namespace

std::string perplexity_json(const ReportSubject& subject, const PerplexityReport& report) {
  Json json;
  json["model"] = subject.model;
  json["text"] = subject.text;
  json["tokens"] = subject.text_tokens;
  json["seqlen"] = report.seqlen;
  json["windows"] = report.windows;
  json["results"] = Json::array();
  for (const VariantResult& result : report.results) {
    Json row;
    row["name"] = result.name;
    row["nll"] = result.nll;
    row["ppl"] = result.ppl;
    row["delta_nll"] = result.delta_nll;
    row["delta_nll_se"] = optional_number(result.delta_nll_se);
    row["kl_mean"] = result.kl_mean;
    row["kl_mean_se"] = optional_number(result.kl_mean_se);
    row["kl_p99"] = result.kl_p99;
    row["top1"] = result.top1;
    // An oracle is no cache: nothing to count.
    row["bits_nominal"] = result.bits_nominal;
    row["bits_counted"] = result.counted ? Json(result.bits_counted) : Json(nullptr);
    row["bits_counted_32k"] = result.counted ? Json(result.bits_counted_32k) : Json(nullptr);
    row["cache_bytes"] = result.counted ? Json(result.cache_bytes) : Json(nullptr);
    row["table_bytes"] = result.table_bytes;
    row["seconds"] = result.seconds;
    row["window_nll"] = result.window_nll;
    json["results"].push_back(std::move(row));
  }
  json["seconds"] = report.seconds;
  json["settings"] = subject.settings;
  return dump(json);
}

Table perplexity_table(const PerplexityReport& report) {
  Table table;
  table.header = {"cache", "bits", "counted", "at 32K", "MB", "ppl", "ΔNLL", "±", "KL", "KL p99", "top-1 %", "time"};
  for (const VariantResult& result : report.results) {
    const bool baseline = &result == &report.results.front();
    const std::string none = "–";
    table.rows.push_back({
        result.name,
        fmt::format("{:g}", result.bits_nominal),
        result.counted ? fmt::format("{:.2f}", result.bits_counted) : "oracle",
        result.counted ? fmt::format("{:.2f}", result.bits_counted_32k) : "oracle",
        result.counted ? megabytes(result.cache_bytes) : none,
        fmt::format("{:#.5g}", result.ppl),
        baseline ? none : digits(result.delta_nll),
        baseline || !result.delta_nll_se ? none : fmt::format("{:.2g}", *result.delta_nll_se),
        baseline ? none : digits(result.kl_mean),
        baseline ? none : digits(result.kl_p99),
        baseline ? none : fmt::format("{:.2f}", 100 * result.top1),
        baseline || report.results.front().seconds <= 0 ? "1.00×"
                                                        : fmt::format("{:.2f}×", result.seconds / report.results.front().seconds),
    });
  }
  return table;
}

std::string recommendation(const PerplexityReport& report, double max_kl) {
  if (const VariantResult* best = recommend(report, max_kl)) {
    return fmt::format("Recommendation: {} — the cheapest of these within a mean KL of {:g} nats: {:.2f} bits per value counted "
                       "({:.2f} at 32K), KL {}, ΔNLL {}, {:.1f}× smaller than fp16.",
                       best->name, max_kl, best->bits_counted, best->bits_counted_32k, digits(best->kl_mean),
                       digits(best->delta_nll), 16.0 / best->bits_counted);
  }
  if (const VariantResult* closest = least_damage(report)) {
    if (closest->kl_mean <= max_kl) {
      return fmt::format(
          "Recommendation: none of these within a mean KL of {:g} nats is smaller than fp16 at {}; {} takes "
          "{:.2f} bits per value ({:.2f} at 32K). Judge with longer windows.",
          max_kl, plural(report.seqlen, "token"), closest->name, closest->bits_counted, closest->bits_counted_32k);
    }
    return fmt::format("Recommendation: none of these stays within a mean KL of {:g} nats; {} comes closest with {} at {:.2f} "
                       "bits per value. Try more bits, or raise --max-kl.",
                       max_kl, closest->name, digits(closest->kl_mean), closest->bits_counted);
  }
  return "No quantizer was given: this is the unquantized model alone.";
}

std::string perplexity_markdown(const ReportSubject& subject, const PerplexityReport& report, double max_kl) {
  std::string text = head("What a quantized KV cache costs", subject);
  text += fmt::format("{} of {}, {} each.\n\n", plural(report.windows, "window"), plural(report.seqlen, "token"),
                      plural(report.seqlen - 1, "predicted token"));
  text += to_markdown(perplexity_table(report));
  text +=
      "\n- *bits*: nominal bits of the codes; *counted*: all that the cache occupies (codes, ranges, outliers, indices, slack, "
      "sinks, padding) × 8 / number of K and V values, at this window length and at 32K tokens; *MB*: one window's cache.\n"
      "- *ΔNLL*: mean loss minus the unquantized one's, nats per token; *±*: standard error over windows, absent below five.\n"
      "- *KL*: mean divergence of the next-token distribution from the unquantized one's, nats; *KL p99*: its 99th percentile "
      "over tokens; *top-1*: how often the most likely token is the same.\n"
      "- *time*: transformer layers of this pass relative to the unquantized pass (simulated caches quantize and dequantize).\n"
      "- *oracle*: a range taken from the evaluated window itself; it bounds what a method could do and is no cache.\n\n";
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

std::string passkey_json(const ReportSubject& subject, const std::vector<PasskeyResult>& results) {
  Json json;
  json["model"] = subject.model;
  json["results"] = Json::array();
  for (const PasskeyResult& result : results) {
    Json row;
    row["name"] = result.name;
    row["cells"] = Json::array();
    std::size_t next = 0;
    for (const PasskeyCell& cell : result.cells) {
      Json continuations = Json::array();
      for (int trial = 0; trial < cell.trials; ++trial) continuations.push_back(result.continuations[next++]);
      row["cells"].push_back({{"length", cell.length},
                              {"prompt_tokens", cell.prompt_tokens},
                              {"depth", cell.depth},
                              {"found", cell.found},
                              {"trials", cell.trials},
                              {"continuations", continuations}});
    }
    json["results"].push_back(std::move(row));
  }
  json["settings"] = subject.settings;
  return dump(json);
}

std::string passkey_markdown(const ReportSubject& subject, const std::vector<PasskeyResult>& results) {
  std::string text = fmt::format("# Passkey retrieval\n\nModel `{}`. Keys found / prompts, by prompt length.\n\n", subject.model);
  text += to_markdown(passkey_table(results)) + "\n## By depth\n\n";
  Table table;
  table.header = {"cache", "length", "prompt tokens", "depth", "found"};
  for (const PasskeyResult& result : results) {
    for (const PasskeyCell& cell : result.cells) {
      table.rows.push_back({result.name, std::to_string(cell.length), std::to_string(cell.prompt_tokens), percent(cell.depth),
                            fmt::format("{}/{}", cell.found, cell.trials)});
    }
  }
  return text + to_markdown(table) + settings_section(subject);
}

}  // namespace kvq
