#include <cmath>

#include <fmt/format.h>

#include <kvq/eval/report.h>

namespace kvq {

namespace {

/// As JSON has them: the shortest text that reads back as the same number; nothing where there is no number.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string number(const std::optional<double>& value) { return value ? number(*value) : ""; }
std::string number(std::int64_t value) { return fmt::format("{}", value); }

}  // namespace

Table perplexity_numbers(const std::vector<Evaluation>& evaluations) {
  Table table;
  table.header = {"model",        "text",         "seqlen",
                  "windows",      "name",         "cache",
                  "calibration",  "layers",       "side",
                  "bits_nominal", "bits_counted", "bits_counted_32k",
                  "cache_bytes",  "table_bytes",  "nll",
                  "ppl",          "delta_nll",    "delta_nll_se",
                  "kl_mean",      "kl_mean_se",   "kl_p99",
                  "top1",         "seconds",      "sha256",
                  "weights",      "weights_bits", "weights_sha256",
                  "prompt",       "judge_from"};
  for (const Evaluation& evaluation : evaluations) {
    for (const VariantResult& result : evaluation.report.results) {
      std::string layers;
      for (const int layer : result.parts.layers) layers += fmt::format("{}{}", layers.empty() ? "" : " ", layer);
      const auto if_counted = [&](const std::string& text) { return result.counted ? text : std::string(); };
      table.rows.push_back({evaluation.subject.model,
                            evaluation.subject.text,
                            number(evaluation.report.seqlen),
                            number(evaluation.report.windows),
                            result.name,
                            result.cache,
                            result.source.calibration,
                            layers,
                            result.parts.side ? side_name(*result.parts.side) : "",
                            number(result.bits_nominal),
                            if_counted(number(result.bits_counted)),
                            if_counted(number(result.bits_counted_32k)),
                            if_counted(number(result.cache_bytes)),
                            number(result.table_bytes),
                            number(result.nll),
                            number(result.ppl),
                            number(result.delta_nll),
                            number(result.delta_nll_se),
                            number(result.kl_mean),
                            number(result.kl_mean_se),
                            number(result.kl_p99),
                            number(result.top1),
                            number(result.seconds),
                            result.source.sha256,
                            result.weights.name,
                            result.weights.used() ? number(result.weights.bits_counted) : "",
                            result.weights.sha256,
                            evaluation.report.span.prompt > 0 ? number(evaluation.report.span.prompt) : "",
                            number(evaluation.report.span.from)});
    }
  }
  return table;
}

Table passkey_numbers(const std::vector<PasskeyResult>& results) {
  Table table;
  table.header = {"name", "length", "prompt_tokens", "depth", "found", "trials"};
  for (const PasskeyResult& result : results) {
    for (const PasskeyCell& cell : result.cells) {
      table.rows.push_back({result.name, number(cell.length), number(cell.prompt_tokens), number(cell.depth),
                            number(std::int64_t{cell.found}), number(std::int64_t{cell.trials})});
    }
  }
  return table;
}

}  // namespace kvq
