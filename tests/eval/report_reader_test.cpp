#include "support/catch.h"
#include "support/temp_dir.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/core/log.h>
#include <kvq/eval/report_charts.h>
#include <kvq/eval/report_reader.h>

using namespace kvq;
using kvq::test::TempDir;
using kvq::test::write_bytes;
using nlohmann::json;

namespace {

VariantResult variant(const std::string& name, double shift, const std::string& sha256) {
  VariantResult row;
  row.name = name;
  row.window_nll = {3.0 + shift, 3.1 + shift, 2.9 + shift, 3.2 + 2 * shift, 2.8 + shift};
  row.window_kl = {shift, shift, shift, shift, shift};
  row.nll = 3.0 + 1.2 * shift;
  row.ppl = std::exp(row.nll);
  row.delta_nll = shift;
  row.delta_nll_se = 0.01;
  row.kl_mean = shift;
  row.kl_p99 = 2 * shift;
  row.top1 = 0.9;
  row.bits_counted = 3.39;
  row.bits_counted_32k = 3.36;
  row.cache_bytes = 1000;
  row.cache = "simulated";
  row.position_nll = {5, 3};
  row.position_kl = {shift, shift};
  row.source = {name + ".h5", sha256, {{"calibration", std::string(64, 'c')}}, ""};
  row.layers.resize(2);
  row.layers[1].sides[0] =
      SideDistribution{std::vector<std::int64_t>(kDistributionBins, 7), 1, 2, {{-1.0f, 0.25f}}, 0.01, 0.011};
  return row;
}

const WeightsSource kWeights{"w4-s0.45%", "w.h5", std::string(64, 'w'), 4.6, {{"weight-fisher", std::string(64, 'f')}}};

ReportDocument example() {
  ReportDocument document;
  Evaluation& evaluation = document.evaluations.emplace_back();
  evaluation.subject = {"m.gguf",
                        "t.txt",
                        999,
                        "seqlen = 100\n",
                        std::string(64, 'm'),
                        std::string(64, 'k'),
                        std::string(64, 't'),
                        "fp32",
                        "never",
                        "kvq-eval perplexity --model m.gguf",
                        "kvq-eval 0.1.0"};
  PerplexityReport& report = evaluation.report;
  report.seqlen = 100;
  report.windows = 5;
  report.position_edges = {0, 1, 99};
  report.seconds = 1.5;
  VariantResult none = variant("none", 0, "");
  none.cache = "";
  none.source = {};
  none.layers.clear();
  report.results = {none, variant("nuq3-1%", 0.08, std::string(64, '3'))};
  return document;
}

NamedReport named(const std::string& name, const ReportDocument& document) { return {name, document}; }

std::string refusal(const std::vector<NamedReport>& reports) {
  try {
    merge_reports(reports, true, quiet_context().log);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    return error.what();
  }
  return "";
}

std::string read_refusal(const TempDir& dir, const std::string& content) {
  write_bytes(dir / "r.json", content);
  try {
    read_report(dir / "r.json");
  } catch (const Error& error) {
    CHECK(exit_code(error.kind()) == 2);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("r.json"));
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("What is read from a report writes the same report again") {
  TempDir dir;
  ReportDocument document = example();
  document.evaluations[0].report.results[1].parts = {{0, 3}, Side::Value};
  document.evaluations[0].report.results[1].counted = false;
  document.evaluations[0].report.results[1].ppl = std::numeric_limits<double>::infinity();
  document.evaluations[0].report.results[1].weights = kWeights;
  for (const bool experiment : {false, true}) {
    if (experiment) {
      document.title = "title";
      document.question = "why?";
      document.claims = {{"helps", "nuq3-1%", "none"}};
      document.commands = {"a", "b"};
      document.passkey = PasskeyEvaluation{document.evaluations[0].subject,
                                           {{"none", {{1024, 950, 0.05, 1, 1}}, {"12345"}, ""},
                                            {"w", {{1024, 950, 0.05, 1, 1}}, {"12345"}, "", kWeights}}};
    }
    const std::string text = document_json(document);
    write_bytes(dir / "report.json", text);
    CHECK(document_json(read_report(dir / "report.json")) == text);
  }
}

TEST_CASE("Reports of one model and text become one, the baseline once") {
  ReportDocument other = example();
  other.evaluations[0].report.results.push_back(variant("nuq2-1%", 0.4, std::string(64, '2')));
  const ReportDocument merged = merge_reports({named("a", example()), named("b", other)}, true, quiet_context().log);
  REQUIRE(merged.evaluations.size() == 1);
  std::vector<std::string> names;
  for (const VariantResult& row : merged.evaluations[0].report.results) names.push_back(row.name);
  CHECK(names == std::vector<std::string>{"none", "nuq3-1%", "nuq2-1%"});
  CHECK(merged.commands == std::vector<std::string>{"kvq-eval perplexity --model m.gguf"});
}

TEST_CASE("Another quantizer of the same recipe keeps its row, named after its report") {
  ReportDocument other = example();
  other.evaluations[0].report.results[1].source.sha256 = std::string(64, '9');
  const ReportDocument merged =
      merge_reports({named("a", example()), named("b.json", other), named("b.json", other)}, true, quiet_context().log);
  REQUIRE(merged.evaluations[0].report.results.size() == 3);
  CHECK(merged.evaluations[0].report.results[2].name == "nuq3-1% [b.json]");
}

TEST_CASE("Rows with other weights are other rows, and weights alone are one row however often they come") {
  ReportDocument first = example(), second = example();
  VariantResult both = variant("nuq3-1% + w4", 0.1, std::string(64, '3')), alone = variant("w4", 0.05, "");
  both.weights = alone.weights = kWeights;
  alone.source = {};
  alone.cache = "";
  first.evaluations[0].report.results.push_back(alone);
  second.evaluations[0].report.results = {second.evaluations[0].report.results[0], alone, both};
  const ReportDocument merged = merge_reports({named("a", first), named("b", second)}, true, quiet_context().log);
  std::vector<std::string> names;
  for (const VariantResult& row : merged.evaluations[0].report.results) names.push_back(row.name);
  CHECK(names == std::vector<std::string>{"none", "nuq3-1%", "w4", "nuq3-1% + w4"});
  // A rate–distortion chart is about caches.
  const Chart chart = rate_distortion(merged.evaluations[0].report, Damage::Kl);
  std::size_t points = 0;
  for (const ChartSeries& series : chart.series) points += series.points.size();
  CHECK(points == 2);
  CHECK(recipe_family("nuq3-1% + w4-s0.45%") != recipe_family("nuq3-1%"));
}

TEST_CASE("A report of a version that knew no quantized weights is read") {
  TempDir dir;
  json old = json::parse(document_json(example()));
  for (json& row : old["results"]) row.erase("weights");
  write_bytes(dir / "r.json", old.dump());
  CHECK_FALSE(read_report(dir / "r.json").evaluations[0].report.results[1].weights.used());
  old["results"][1]["weights"] = {{"name", "w4"}};
  CHECK_THAT(read_refusal(dir, old.dump()), ContainsSubstring("'results[1].weights.bits_counted' is missing"));
}

TEST_CASE("Reports that do not belong together are refused with both files and what differs") {
  const auto with = [](const auto& change) {
    ReportDocument other = example();
    change(other.evaluations[0]);
    return refusal({named("a.json", example()), named("b.json", other)});
  };
  for (const std::string& message :
       {with([](Evaluation& e) { e.subject.model_sha256[0] = 'x'; }),
        with([](Evaluation& e) { e.subject.text_sha256[0] = 'x'; }), with([](Evaluation& e) { e.report.seqlen = 50; }),
        with([](Evaluation& e) { e.subject.bos = "window"; })}) {
    CHECK_THAT(message, ContainsSubstring("a.json and b.json cannot be compared"));
  }
  CHECK_THAT(with([](Evaluation& e) { e.subject.model_sha256[0] = 'x'; }),
             ContainsSubstring("the model is m.gguf (sha256 mmmm") && ContainsSubstring("xmmm"));
  CHECK_THAT(with([](Evaluation& e) { e.report.seqlen = 50; }),
             ContainsSubstring("--seqlen") && ContainsSubstring("is 100 in the first, 50 in the second"));
  CHECK_THAT(with([](Evaluation& e) { e.report.windows = 4; }), ContainsSubstring("--max-windows"));
  CHECK_THAT(with([](Evaluation& e) { e.subject.dtype = "bf16"; }), ContainsSubstring("--dtype"));
  CHECK_THAT(with([](Evaluation& e) { e.report.results[0].window_nll[2] += 0.01; }),
             ContainsSubstring("loss of window 2"));
  CHECK(with([](Evaluation& e) { e.report.results[0].window_nll[2] += 1e-5; }).empty());
}

TEST_CASE("A row's time is told in relation to its own run, whatever stands beside it") {
  TempDir dir;
  const auto report = [&](const std::string& name, double unquantized, double quantized) {
    ReportDocument document = example();
    std::vector<VariantResult>& rows = document.evaluations[0].report.results;
    rows[0].seconds = unquantized;
    rows[1].seconds = quantized;
    rows[1].relative_time = quantized / unquantized;
    rows[1].name = name;
    rows[1].source.sha256 = std::string(64, name[0]);
    return document;
  };
  const ReportDocument quick = report("quick", 2, 3), slow = report("slow", 20, 22);
  const ReportDocument both = merge_reports({named("a", quick), named("b", slow)}, true, quiet_context().log);
  const Table table = perplexity_table(both.evaluations[0].report);
  CHECK(table.rows[1].back() == "1.50×");
  CHECK(table.rows[2].back() == "1.10×");
  // Reports of earlier versions do not say it, but are of one run.
  json old = json::parse(document_json(slow));
  for (json& row : old["results"]) row.erase("relative_time");
  write_bytes(dir / "old.json", old.dump());
  CHECK(read_report(dir / "old.json").evaluations[0].report.results[1].relative_time == Approx(1.1));
}

TEST_CASE("Passkey grids join an evaluation of the same model, and each other when the prompts are the same") {
  ReportDocument passkey;
  passkey.passkey = PasskeyEvaluation{
      example().evaluations[0].subject,
      {{"none", {{1024, 950, 0.05, 1, 1}}, {"12345"}, ""}, {"nuq3-1%", {{1024, 950, 0.05, 0, 1}}, {"1"}, "3"}}};
  CHECK(
      merge_reports({named("a", example()), named("p", passkey)}, true, quiet_context().log).passkey->results.size() ==
      2);
  ReportDocument other = passkey;
  other.passkey->results[1] = {"nuq2-1%", {{1024, 950, 0.05, 0, 1}}, {"2"}, "2"};
  CHECK(merge_reports({named("p", passkey), named("q", other)}, true, quiet_context().log).passkey->results.size() ==
        3);
  other.passkey->results[0].cells[0].depth = 0.5;
  CHECK_THAT(refusal({named("p", passkey), named("q", other)}), ContainsSubstring("depth"));
}

TEST_CASE("A report's differences are judged by their paired standard error") {
  const PerplexityReport report = example().evaluations[0].report;
  const auto result = judge({"", "none", "nuq3-1%"}, report);
  REQUIRE(result.has_value());
  // Differences 0.08, 0.08, 0.08, 0.16, 0.08: mean 0.096, standard deviation 0.0357771, error 0.016.
  CHECK(result->difference == Approx(0.096));
  CHECK(*result->standard_error == Approx(0.016));
  CHECK(result->verdict() == "holds");
  CHECK(judge({"", "nuq3-1%", "none"}, report)->verdict() == "does not hold");
  CHECK(judge({"", "none", "none"}, report)->verdict() == "undecided");
  CHECK_FALSE(judge({"", "none", "nuq9"}, report).has_value());
}

TEST_CASE("What is no report is refused by name, wherever it is wrong") {
  TempDir dir;
  const std::string good = document_json(example());
  CHECK(read_refusal(dir, good).empty());
  CHECK_THAT(read_refusal(dir, ""), ContainsSubstring("no JSON"));
  CHECK_THAT(read_refusal(dir, good.substr(0, good.size() / 2)), ContainsSubstring("no JSON"));
  CHECK_THAT(read_refusal(dir, "[]"), ContainsSubstring("an object"));
  CHECK_THAT(read_refusal(dir, "{}"), ContainsSubstring("no report of kvq-eval"));
  CHECK_THAT(read_refusal(dir, R"({"model": "m", "results": []})"), ContainsSubstring("earlier version"));
  // Every key that is missing or of another type is named, or the report is read all the same; never a crash.
  const json whole = json::parse(good);
  const json flat = whole.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (const json& bad : {json("text"), json(-1.5), json(json::array()), json(json::object())}) {
      json damaged = whole;
      damaged[json::json_pointer(pointer)] = bad;
      read_refusal(dir, damaged.dump());
    }
  }
  for (const char* key : {"model_sha256", "seqlen", "windows", "results", "position_edges", "settings"}) {
    json damaged = whole;
    damaged.erase(key);
    CHECK_THAT(read_refusal(dir, damaged.dump()), ContainsSubstring(key));
  }
}

TEST_CASE("Values that no report holds are refused before a picture is drawn of them") {
  TempDir dir;
  const nlohmann::json good = nlohmann::json::parse(document_json(example()));
  const auto with = [&](const std::string& place, const nlohmann::json& value) {
    nlohmann::json damaged = good;
    damaged.at(nlohmann::json::json_pointer(place)) = value;
    return read_refusal(dir, damaged.dump());
  };
  const std::string books = "/results/1/layers/1/key/codebooks";
  CHECK_THAT(with(books, nlohmann::json::array()), ContainsSubstring("codebooks"));
  CHECK_THAT(with(books, {nlohmann::json::array()}), ContainsSubstring("codebooks"));
  CHECK_THAT(with(books, {{1e300}}), ContainsSubstring("codebooks"));
  CHECK_THAT(with(books, {{0.5, -0.5}}), ContainsSubstring("ascending"));
  CHECK_THAT(with("/results/1/layers/1/key/histogram/3", -1), ContainsSubstring("histogram"));
  CHECK_THAT(with("/results/1/layers/1/key/below", -1), ContainsSubstring("below"));
  CHECK_THAT(with("/results/1/window_nll/2", 2.0), ContainsSubstring("'results[1].nll' is not the mean"));
  CHECK_THAT(with("/results/1/window_kl/2", 2.0), ContainsSubstring("'results[1].kl_mean' is not the mean"));
  CHECK_THAT(with("/results/1/ppl", 2.0), ContainsSubstring("ppl"));
  for (const char* key : {"bits_counted", "kl_mean", "nll"})
    CHECK_THAT(with(std::string("/results/1/") + key, 1e300), ContainsSubstring(key));
  CHECK_THAT(with("/position_edges", {0, 5, 5}), ContainsSubstring("ascending"));
  CHECK_THAT(with("/position_edges", {1, 5, 9}), ContainsSubstring("ascending"));

  ReportDocument other = example();
  other.evaluations[0].report.position_edges = {0, 2, 99};
  CHECK_THAT(refusal({named("a", example()), named("b", other)}), ContainsSubstring("position_edges"));

  try {
    read_report(dir / "");
    FAIL("a folder was read");
  } catch (const Error& error) {
    CHECK(exit_code(error.kind()) == 2);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("is a folder"));
  }
}

TEST_CASE("Recipes that differ in their bits only, or in their budget, are one family") {
  CHECK(recipe_family("nuq3-1%") == "nuqB-1%");
  CHECK(recipe_family("K=nuq4-1%:sink=0/V=int2") == "K=nuqB-1%:sink=0/V=intB");
  CHECK(recipe_family("kvq1.5") == "kvqB");
  CHECK(recipe_family("kvq2:icm=0") == "kvqB:icm=0");
  CHECK(recipe_family("none") == "none");
  CHECK(recipe_family("none:evict=h2o,budget=25%") == "none:evict=h2o");
  CHECK(recipe_family("none:evict=h2o,budget=512,heavy=30% [q]") == "none:evict=h2o,heavy=30% [q]");
  CHECK(recipe_family("K=nuq4:evict=snapkv,budget=512/V=nuq2") == "K=nuq4:evict=snapkv/V=nuq2");
}
