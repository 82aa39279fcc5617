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
  row.delta_nll = 1.2 * shift;
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
                                            {"w", {{1024, 950, 0.05, 1, 1}}, {"12345"}, "", kWeights, "packed"}}};
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
  // The same on another kind of cache stands beside it, whatever it answered.
  ReportDocument packed = passkey, simulated = passkey;
  packed.passkey->results[1].cache = "packed";
  simulated.passkey->results[1].cache = "simulated";
  const auto names = [](const std::vector<NamedReport>& reports) {
    std::vector<std::string> list;
    const ReportDocument merged = merge_reports(reports, true, quiet_context().log);
    for (const PasskeyResult& row : merged.passkey->results) list.push_back(row.name);
    return list;
  };
  CHECK(names({named("s", simulated), named("p", packed)}) ==
        std::vector<std::string>{"none", "nuq3-1%", "nuq3-1% [packed]"});
  CHECK(names({named("p", packed), named("s", simulated), named("again", packed)}) ==
        std::vector<std::string>{"none", "nuq3-1%", "nuq3-1% [simulated]"});
  CHECK(names({named("earlier version", passkey), named("p", packed)}) == std::vector<std::string>{"none", "nuq3-1%"});
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
  CHECK_THAT(with("/results/1/window_nll/2", 2.0),
             ContainsSubstring("'results[1].nll' is 3.096, not the mean of 'window_nll'"));
  CHECK_THAT(with("/results/1/window_kl/2", 2.0),
             ContainsSubstring("'results[1].kl_mean' is 0.08, not the mean of 'window_kl'"));
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

TEST_CASE("Numbers that no evaluation gives are refused with their place, the value, and what would be right") {
  TempDir dir;
  ReportDocument document = example();
  document.passkey = PasskeyEvaluation{
      document.evaluations[0].subject,
      {{"none", {{1024, 950, 0.05, 1, 2}}, {"1", "2"}, ""}, {"int4", {{1024, 950, 0.05, 0, 2}}, {"1", "3"}, "4"}}};
  document.tasks = TaskEvaluation{document.evaluations[0].subject, {}};
  document.tasks->report.prompts = {{"niah", 1024, 900, false, {"a"}}};
  document.tasks->report.results = {{"none", "", {{"a", 1.0}}, {}}, {"int4", "4", {{"b", 0.25}}, {}}};
  VariantResult weights = variant("w4", 0.1, "");
  weights.weights = kWeights;
  document.evaluations[0].report.results.push_back(weights);
  const json good = json::parse(document_json(document));
  REQUIRE(read_refusal(dir, good.dump()).empty());
  struct Bad {
    const char* place;
    json value;
    const char* wanted;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"/results/1/bits_counted", -5, "'results[1].bits_counted' is -5, not a number of bits (above 0)"},
           {"/results/1/bits_counted", 0, "a number of bits"},
           {"/results/1/bits_counted_32k", -0.5, "is -0.5, not a number of bits"},
           {"/results/1/bits_nominal", -3, "a number of bits"},
           {"/results/1/bits_nominal", nullptr, "is null, not a number of bits"},
           {"/results/2/weights/bits_counted", -4, "'results[2].weights.bits_counted' is -4"},
           {"/results/1/top1", 7, "'results[1].top1' is 7, not a share (0 to 1)"},
           {"/results/1/top1", -0.1, "a share"},
           {"/results/1/top1", nullptr, "a share"},
           {"/results/1/kl_p99", -1, "'results[1].kl_p99' is -1, not a divergence (0 or more)"},
           {"/results/1/window_kl/2", -0.5, "'results[1].window_kl[2]' is -0.5, not a divergence"},
           {"/results/1/window_nll/4", -3, "'results[1].window_nll[4]' is -3, not a loss"},
           {"/results/1/position_nll/0", nullptr, "'results[1].position_nll[0]' is null, not a loss"},
           {"/results/1/position_kl/1", -2, "a divergence"},
           {"/results/1/nll", nullptr, "a loss"},
           {"/results/1/ppl", -20, "'results[1].ppl' is -20, not a perplexity (1 or more)"},
           {"/results/1/ppl", 0, "a perplexity"},
           {"/results/1/delta_nll", 1e31, "ordinary size"},
           {"/results/1/delta_nll", -2, "'results[1].delta_nll' is -2"},
           {"/results/1/delta_nll_se", -0.1, "at least 0"},
           {"/results/1/kl_mean_se", -0.1, "at least 0"},
           {"/results/1/cache_bytes", -1000, "'results[1].cache_bytes' is -1000, not a whole number of at least 1"},
           {"/results/1/cache_bytes", std::uint64_t{1} << 63, "is 9223372036854775808, not a whole number"},
           {"/results/1/table_bytes", -1, "table_bytes"},
           {"/results/1/seconds", -1, "seconds"},
           {"/results/1/relative_time", -1, "relative_time"},
           {"/results/1/cache", "cabbage", "is \"cabbage\", not simulated, packed, cuda, or empty"},
           {"/results/1/layers/1/key/outlier_rate", 1.5, "a share"},
           {"/results/1/layers/1/key/calibrated_outlier_rate", -1, "a share"},
           {"/results/1/layers/1/key/histogram/3", -1, "'results[1].layers[1].key.histogram[3]' is -1"},
           {"/seqlen", 1, "'seqlen' is 1, not a whole number of at least 2"},
           {"/seqlen", 90, "ascending edges from 0 to 89"},
           {"/windows", 0, "windows"},
           {"/tokens", -1, "tokens"},
           {"/judge_from", 99, "'judge_from' is 99, not a whole number from 0 to 98"},
           {"/prompt", 100, "prompt"},
           {"/seconds", -1, "seconds"},
           {"/max_kl", -1, "max_kl"},
           {"/passkey/results/1/cells/0/found", 3,
            "'passkey.results[1].cells[0].found' is 3, not a whole number from 0 to 2"},
           {"/passkey/results/1/cells/0/found", -1, "found"},
           {"/passkey/results/1/cells/0/trials", 0, "trials"},
           {"/passkey/results/1/cells/0/depth", 1.5, "a share"},
           {"/passkey/results/1/cells/0/prompt_tokens", 1025, "prompt_tokens"},
           {"/passkey/results/1/cells/0/length", 1000, "'passkey.results[1].cells' is not those of the first row"},
           {"/passkey/results/1/cache", "cabbage", "cache"},
           {"/tasks/results/1/answers/0/score", 2, "'tasks.results[1].answers[0].score' is 2, not a share"},
           {"/tasks/prompts/0/length", -1, "length"},
           {"/tasks/prompts/0/prompt_tokens", 0, "prompt_tokens"},
       }) {
    json damaged = good;
    damaged.at(json::json_pointer(bad.place)) = bad.value;
    CAPTURE(bad.place);
    CHECK_THAT(read_refusal(dir, damaged.dump()), ContainsSubstring(bad.wanted));
  }
  // Roundings of what cannot be negative, and what overflowed, are no damage.
  for (const auto& [place, value] : {std::pair<const char*, json>{"/results/1/position_kl/1", -1e-6},
                                     {"/results/1/kl_p99", nullptr},
                                     {"/results/1/ppl", nullptr}}) {
    json fine = good;
    fine.at(json::json_pointer(place)) = value;
    CHECK(read_refusal(dir, fine.dump()) == "");
  }
  json longest = good;
  longest["results"][1]["cache"] = std::string(5000, 'c');
  CHECK(read_refusal(dir, longest.dump()).size() < 400);
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
