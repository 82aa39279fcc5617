#include "support/catch.h"

#include <set>

#include <nlohmann/json.hpp>

#include <kvq/eval/report.h>

using namespace kvq;
using nlohmann::json;

namespace {

VariantResult variant(const std::string& name, double kl, double bits) {
  VariantResult result;
  result.name = name;
  result.window_nll = {3.0, 3.1};
  result.nll = 3.05;
  result.ppl = 21.115;
  result.delta_nll = 0.05;
  result.kl_mean = kl;
  result.kl_p99 = 10 * kl;
  result.top1 = 0.93;
  result.bits_nominal = 3;
  result.bits_counted = bits;
  result.bits_counted_32k = bits - 0.1;
  result.cache_bytes = 1234567;
  result.table_bytes = 999;
  result.seconds = 3;
  result.relative_time = 1.5;
  return result;
}

PerplexityReport example() {
  PerplexityReport report;
  report.seqlen = 512;
  report.windows = 2;
  VariantResult baseline = variant("none", 0, 16);
  baseline.delta_nll = 0;
  baseline.top1 = 1;
  baseline.seconds = 2;
  baseline.relative_time = 1;
  report.results = {baseline, variant("nuq4-1%", 0.02, 4.5), variant("nuq3-1%", 0.08, 3.5),
                    variant("nuq2-1%", 0.5, 2.5)};
  return report;
}

const ReportSubject kSubject{"model.gguf", "text.txt", 1100, "seqlen = 512\n"};

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& item : object.items()) names.insert(item.key());
  return names;
}

}  // namespace

TEST_CASE("The JSON report has the keys of the command-line contract, and the documented ones besides") {
  const json report = json::parse(perplexity_json(kSubject, example()));
  CHECK(keys(report) == std::set<std::string>{"kvq_report", "producer", "model", "model_sha256", "tokenizer_sha256",
                                              "dtype", "bos", "text", "text_sha256", "tokens", "seqlen", "windows",
                                              "prompt", "judge_from", "position_edges", "results", "seconds", "command",
                                              "settings"});
  const std::set<std::string> contract = {
      "name", "nll",          "ppl",          "delta_nll",        "delta_nll_se", "kl_mean",   "kl_p99",
      "top1", "bits_nominal", "bits_counted", "bits_counted_32k", "cache_bytes",  "window_nll"};
  const std::set<std::string> beyond = {"kl_mean_se",   "table_bytes", "seconds",     "relative_time",
                                        "cache",        "only_layers", "only_side",   "file",
                                        "sha256",       "parents",     "calibration", "window_kl",
                                        "position_nll", "position_kl", "layers",      "weights"};
  for (const json& row : report["results"]) {
    std::set<std::string> expected = contract;
    expected.insert(beyond.begin(), beyond.end());
    CHECK(keys(row) == expected);
  }
  CHECK(report["tokens"] == 1100);
  CHECK(report["seqlen"] == 512);
  CHECK(report["results"][0]["name"] == "none");
  CHECK(report["results"][1]["window_nll"] == json({3.0, 3.1}));
  CHECK(report["results"][1]["bits_counted"] == 4.5);
  CHECK(report["results"][1]["cache_bytes"] == 1234567);
  CHECK(report["results"][1]["delta_nll_se"].is_null());
}

TEST_CASE("An oracle has no counted bits in any report") {
  PerplexityReport report = example();
  report.results[1].counted = false;
  const json row = json::parse(perplexity_json(kSubject, report))["results"][1];
  for (const char* key : {"bits_counted", "bits_counted_32k", "cache_bytes"}) CHECK(row[key].is_null());
  CHECK(row["bits_nominal"] == 3);
  CHECK(perplexity_table(report).rows[1][2] == "oracle");
}

TEST_CASE("The table gives the baseline no damage and shows what is missing as a dash") {
  const Table table = perplexity_table(example());
  REQUIRE(table.rows.size() == 4);
  for (const auto& row : table.rows) CHECK(row.size() == table.header.size());
  CHECK(table.rows[0] ==
        std::vector<std::string>{"none", "3", "16.00", "15.90", "1.23", "21.115", "–", "–", "–", "–", "–", "1.00×"});
  CHECK(table.rows[2] == std::vector<std::string>{"nuq3-1%", "3", "3.50", "3.40", "1.23", "21.115", "0.05000", "–",
                                                  "0.08000", "0.8000", "93.00", "1.50×"});
}

TEST_CASE("A small cache is not shown as none at all") {
  PerplexityReport report = example();
  report.results[1].cache_bytes = 12345;
  report.results[2].cache_bytes = 994'900;
  report.results[3].cache_bytes = 999'999;
  const Table table = perplexity_table(report);
  CHECK(table.rows[1][4] == "0.0123");
  CHECK(table.rows[2][4] == "0.995");
  CHECK(table.rows[3][4] == "1.00");
}

TEST_CASE("One window is singular") {
  PerplexityReport report = example();
  report.windows = 1;
  report.seqlen = 2;
  CHECK_THAT(perplexity_markdown(kSubject, report, 0.1),
             ContainsSubstring("\n1 window of 2 tokens, 1 predicted token each.\n"));
}

TEST_CASE("File names of any bytes do not spoil a report") {
  ReportSubject subject = kSubject;
  subject.model = "mod\xff\xfe.gguf";
  const json report = json::parse(perplexity_json(subject, example()));
  CHECK(report["model"] == "mod\xef\xbf\xbd\xef\xbf\xbd.gguf");
}

TEST_CASE("Numbers that are not finite become null") {
  PerplexityReport report = example();
  report.results[1].ppl = std::numeric_limits<double>::infinity();
  CHECK(json::parse(perplexity_json(kSubject, report))["results"][1]["ppl"].is_null());
}

TEST_CASE("The cheapest recipe within the damage is recommended, whatever its place in the list") {
  const PerplexityReport report = example();
  CHECK(recommend(report, 0.1)->name == "nuq3-1%");
  CHECK(recommend(report, 0.08)->name == "nuq3-1%");  // the bound itself is within
  CHECK(recommend(report, 0.05)->name == "nuq4-1%");
  CHECK(recommend(report, 1.0)->name == "nuq2-1%");
  CHECK(recommend(report, 0.01) == nullptr);
  const std::string line = recommendation(report, 0.1);
  CHECK_THAT(line, ContainsSubstring("nuq3-1%") && ContainsSubstring("3.50 bits") && ContainsSubstring("4.6×"));
  CHECK(line.find('\n') == std::string::npos);
}

TEST_CASE("When nothing is good enough the closest is named, and how far off it is") {
  const std::string line = recommendation(example(), 0.001);
  CHECK_THAT(line, ContainsSubstring("none of these") && ContainsSubstring("nuq4-1%") && ContainsSubstring("0.02000"));
}

TEST_CASE("Oracles and the baseline are never recommended") {
  PerplexityReport report = example();
  report.results[2].counted = false;
  CHECK(recommend(report, 0.1)->name == "nuq4-1%");
  report.results.resize(1);
  CHECK(recommend(report, 0.1) == nullptr);
  CHECK_THAT(recommendation(report, 0.1), ContainsSubstring("No quantizer"));
}

TEST_CASE("The Markdown report holds the table, its legend, the recommendation and the settings") {
  const std::string text = perplexity_markdown(kSubject, example(), 0.1);
  CHECK_THAT(text, ContainsSubstring("| nuq3-1% |") && ContainsSubstring("*ΔNLL*") &&
                       ContainsSubstring("Recommendation: nuq3-1%") && ContainsSubstring("```toml\nseqlen = 512\n```"));
}

TEST_CASE("Passkey reports add trials over depths and keep every continuation") {
  PasskeyResult none{
      "none",
      {{1024, 950, 0.05, 2, 2}, {1024, 950, 0.95, 1, 2}, {2048, 1930, 0.05, 2, 2}, {2048, 1930, 0.95, 2, 2}},
      {"a", "b", "c", "d", "e", "f", "g", "h"}};
  PasskeyResult quantized = none;
  quantized.name = "nuq2-1%";
  quantized.cells[2].found = 0;
  const std::vector<PasskeyResult> results = {none, quantized};
  const Table table = passkey_table(results);
  CHECK(table.header == std::vector<std::string>{"cache", "1024", "2048"});
  CHECK(table.rows == std::vector<std::vector<std::string>>{{"none", "3/4", "4/4"}, {"nuq2-1%", "3/4", "2/4"}});

  const json report = json::parse(passkey_json(kSubject, results));
  CHECK(keys(report) == std::set<std::string>{"kvq_report", "producer", "model", "model_sha256", "tokenizer_sha256",
                                              "dtype", "bos", "results", "command", "settings"});
  const json& cell = report["results"][1]["cells"][2];
  CHECK(cell == json({{"length", 2048},
                      {"prompt_tokens", 1930},
                      {"depth", 0.05},
                      {"found", 0},
                      {"trials", 2},
                      {"continuations", {"e", "f"}}}));
  CHECK_THAT(passkey_markdown(kSubject, results), ContainsSubstring("| nuq2-1% |") && ContainsSubstring("5 %"));
}

TEST_CASE("A continuation that ends inside a character is still valid JSON") {
  const PasskeyResult result{"none", {{10, 9, 0.5, 0, 1}}, {"caf\xc3"}};
  CHECK(json::parse(passkey_json(kSubject, {result}))["results"][0]["cells"][0]["continuations"][0] ==
        "caf\xef\xbf\xbd");
}
