#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <vector>

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
  table.header = {"claim", "verdict", "ΔNLL worse − better", "±", "better", "worse"};
  if (texts) table.header.insert(table.header.begin() + 1, "text");
  for (const Claim& claim : document.claims) {
    for (const Evaluation& evaluation : document.evaluations) {
      const auto result = judge(claim, evaluation.report);
      if (!result) continue;
      std::vector<std::string> row = {claim.statement,
                                      result->verdict(),
                                      fmt::format("{:#.4g}", result->difference),
                                      result->standard_error ? fmt::format("{:.2g}", *result->standard_error) : "–",
                                      claim.better,
                                      claim.worse};
      if (texts) row.insert(row.begin() + 1, evaluation.subject.text);
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

std::string claims_answer(const ReportDocument& document) {
  constexpr std::size_t kMostNamed = 8;
  const bool texts = document.evaluations.size() > 1;
  std::map<std::string, std::vector<std::string>> by_verdict;
  for (const Claim& claim : document.claims) {
    for (const Evaluation& evaluation : document.evaluations) {
      const auto result = judge(claim, evaluation.report);
      if (!result) continue;
      by_verdict[result->verdict()].push_back(
          texts ? fmt::format("{} (on {})", claim.statement, evaluation.subject.text) : claim.statement);
    }
  }
  std::string text;
  for (const char* verdict : {"holds", "does not hold", "undecided", "too few windows"}) {
    const std::vector<std::string>& claims = by_verdict[verdict];
    if (claims.empty()) continue;
    std::string heading = verdict;
    heading[0] = static_cast<char>(std::toupper(heading[0]));
    text += (text.empty() ? "" : " ") + heading + ": ";
    text += claims.size() <= kMostNamed ? fmt::format("{}", fmt::join(claims, "; "))
                                        : fmt::format("{} of the claims below", claims.size());
    text += ".";
  }
  return text;
}

}  // namespace kvq
