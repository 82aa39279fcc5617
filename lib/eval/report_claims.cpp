#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/eval/report.h>
#include <kvq/stats/summary.h>

namespace kvq {

namespace {

const VariantResult* find(const PerplexityReport& report, const std::string& name) {
  const auto found = std::find_if(report.results.begin(), report.results.end(),
                                  [&](const VariantResult& row) { return row.name == name; });
  return found == report.results.end() ? nullptr : &*found;
}

}  // namespace

std::string ClaimResult::verdict() const {
  if (!standard_error) return "too few windows";
  if (std::abs(difference) <= 2 * *standard_error) return "undecided";
  return difference > 0 ? "holds" : "does not hold";
}

std::optional<ClaimResult> judge(const Claim& claim, const PerplexityReport& report) {
  const VariantResult *better = find(report, claim.better), *worse = find(report, claim.worse);
  if (!better || !worse) return std::nullopt;
  std::vector<double> differences;
  for (std::size_t window = 0; window < better->window_nll.size(); ++window)
    differences.push_back(worse->window_nll[window] - better->window_nll[window]);
  return ClaimResult{mean(differences), standard_error(differences)};
}

Table claims_table(const ReportDocument& document) {
  const bool texts = document.evaluations.size() > 1;
  Table table;
  table.header = {"claim", "better", "worse", "ΔNLL worse − better", "±", "verdict"};
  if (texts) table.header.insert(table.header.begin() + 1, "text");
  for (const Claim& claim : document.claims) {
    for (const Evaluation& evaluation : document.evaluations) {
      const auto result = judge(claim, evaluation.report);
      if (!result) continue;
      std::vector<std::string> row = {claim.statement,
                                      claim.better,
                                      claim.worse,
                                      fmt::format("{:#.4g}", result->difference),
                                      result->standard_error ? fmt::format("{:.2g}", *result->standard_error) : "–",
                                      result->verdict()};
      if (texts) row.insert(row.begin() + 1, evaluation.subject.text);
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace kvq
