#include <kvq/eval/report_reader.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/stats/summary.h>

namespace kvq {

namespace {

using Json = nlohmann::json;

constexpr double kLargest = 1e30;  ///< nothing that a report holds comes near it

constexpr std::int64_t kMostLayers = 4096;

/// An object of the file, knowing its place for messages.
class Object {
 public:
  Object(const std::string& file, std::string place, const Json& json)
      : file_(file), place_(std::move(place)), json_(json) {
    if (!json.is_object()) wrong("", "an object");
  }

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  double number(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return std::nan("");  // what is not finite is written as null
    if (!value.is_number()) wrong(key, "a number");
    if (std::abs(value.get<double>()) > kLargest) wrong(key, "a number of ordinary size");
    return value.get<double>();
  }
  std::int64_t whole(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) wrong(key, "a whole number");
    return value.get<std::int64_t>();
  }
  bool truth(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) wrong(key, "true or false");
    return value.get<bool>();
  }
  std::optional<double> maybe(const char* key) const { return has(key) ? std::optional(number(key)) : std::nullopt; }
  std::vector<double> numbers(const char* key) const {
    std::vector<double> list;
    for (const Json& value : array(key)) {
      if (!value.is_number() && !value.is_null()) wrong(key, "an array of numbers");
      list.push_back(value.is_null() ? std::nan("") : value.get<double>());
    }
    return list;
  }
  std::vector<std::int64_t> wholes(const char* key) const {
    std::vector<std::int64_t> list;
    for (const Json& value : array(key)) {
      if (!value.is_number_integer()) wrong(key, "an array of whole numbers");
      list.push_back(value.get<std::int64_t>());
    }
    return list;
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> list;
    for (const Json& value : array(key)) {
      if (!value.is_string()) wrong(key, "an array of strings");
      list.push_back(value.get<std::string>());
    }
    return list;
  }
  const Json& array(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) wrong(key, "an array");
    return value;
  }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) {
      fail(ErrorKind::Format,
           fmt::format("{}: '{}{}' is missing: this is no complete report of kvq-eval", file_, place_, key));
    }
    return *found;
  }
  Object object(const char* key) const { return {file_, place_ + key + ".", at(key)}; }
  std::vector<Object> objects(const char* key) const {
    std::vector<Object> list;
    for (const Json& value : array(key))
      list.emplace_back(file_, fmt::format("{}{}[{}].", place_, key, list.size()), value);
    return list;
  }
  const Json& json() const { return json_; }
  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const {
    fail(ErrorKind::Format,
         fmt::format("{}: {} is not {}: this is no report of kvq-eval", file_,
                     place_.empty() && key.empty() ? "the whole" : fmt::format("'{}{}'", place_, key), wanted));
  }

 private:
  const std::string& file_;
  std::string place_;
  const Json& json_;
};

ReportSubject read_subject(const Object& object) {
  ReportSubject subject;
  subject.producer = object.text("producer");
  subject.model = object.text("model");
  subject.model_sha256 = object.text("model_sha256");
  subject.tokenizer_sha256 = object.text("tokenizer_sha256");
  subject.dtype = object.text("dtype");
  subject.bos = object.text("bos");
  subject.command = object.text("command");
  subject.settings = object.text("settings");
  return subject;
}

SideDistribution read_side(const Object& object) {
  SideDistribution side;
  side.outlier_rate = object.number("outlier_rate");
  side.calibrated_outlier_rate = object.number("calibrated_outlier_rate");
  side.counts = object.wholes("histogram");
  if (side.counts.size() != static_cast<std::size_t>(kDistributionBins))
    object.wrong("histogram", fmt::format("an array of {} counts", kDistributionBins));
  const auto is_count = [](std::int64_t count) { return count >= 0; };
  if (!std::all_of(side.counts.begin(), side.counts.end(), is_count))
    object.wrong("histogram", "an array of counts, none of them negative");
  side.below = object.whole("below");
  side.above = object.whole("above");
  if (!is_count(side.below)) object.wrong("below", "a count");
  if (!is_count(side.above)) object.wrong("above", "a count");
  for (const Json& book : object.array("codebooks")) {
    if (!book.is_array() || book.empty()) object.wrong("codebooks", "an array of arrays with at least one level");
    side.codebooks.emplace_back();
    for (const Json& level : book) {
      if (!level.is_number()) object.wrong("codebooks", "an array of arrays of numbers");
      side.codebooks.back().push_back(level.get<float>());
      if (!std::isfinite(side.codebooks.back().back())) object.wrong("codebooks", "an array of arrays of numbers");
    }
    if (!std::is_sorted(side.codebooks.back().begin(), side.codebooks.back().end()))
      object.wrong("codebooks", "an array of arrays with ascending levels");
  }
  if (side.codebooks.empty()) object.wrong("codebooks", "an array of at least one array");
  return side;
}

/// Reports of versions that knew none have no such key.
WeightsSource read_weights(const Object& row) {
  WeightsSource weights;
  if (!row.has("weights")) return weights;
  const Object object = row.object("weights");
  weights.name = object.text("name");
  weights.bits_counted = object.number("bits_counted");
  weights.file = object.text("file");
  weights.sha256 = object.text("sha256");
  const Object parents = object.object("parents");
  for (const auto& item : parents.json().items())
    weights.parents.emplace_back(item.key(), parents.text(item.key().c_str()));
  return weights;
}

/// The numbers of a row that follow from others of it. What was written with all digits agrees but for roundings.
void check_row(const Object& object, const VariantResult& row) {
  const auto agree = [](double a, double b) {
    return !std::isfinite(a) || !std::isfinite(b) || std::abs(a - b) <= 1e-6 * (1 + std::abs(b));
  };
  if (row.window_nll.empty()) return;
  if (!agree(row.nll, mean(row.window_nll))) object.wrong("nll", "the mean of 'window_nll'");
  if (!agree(row.kl_mean, mean(row.window_kl))) object.wrong("kl_mean", "the mean of 'window_kl'");
  if (row.ppl < 0 || !agree(std::log(row.ppl), row.nll)) object.wrong("ppl", "e to the power of 'nll'");
}

VariantResult read_row(const Object& object, std::int64_t windows, std::size_t intervals) {
  VariantResult row;
  row.name = object.text("name");
  row.nll = object.number("nll");
  row.ppl = object.number("ppl");
  row.delta_nll = object.number("delta_nll");
  row.delta_nll_se = object.maybe("delta_nll_se");
  row.kl_mean = object.number("kl_mean");
  row.kl_mean_se = object.maybe("kl_mean_se");
  row.kl_p99 = object.number("kl_p99");
  row.top1 = object.number("top1");
  row.bits_nominal = object.number("bits_nominal");
  row.counted = object.has("bits_counted");
  if (row.counted) {
    row.bits_counted = object.number("bits_counted");
    row.bits_counted_32k = object.number("bits_counted_32k");
    row.cache_bytes = object.whole("cache_bytes");
  }
  row.table_bytes = object.whole("table_bytes");
  row.seconds = object.number("seconds");
  row.relative_time = object.maybe("relative_time").value_or(1.0);
  row.cache = object.text("cache");
  if (object.has("only_layers")) {
    for (const std::int64_t layer : object.wholes("only_layers")) {
      if (layer < 0 || layer >= kMostLayers) object.wrong("only_layers", "an array of layers");
      row.parts.layers.push_back(static_cast<int>(layer));
    }
  }
  if (object.has("only_side")) {
    const std::string side = object.text("only_side");
    if (side != "key" && side != "value") object.wrong("only_side", "'key' or 'value'");
    row.parts.side = side == "key" ? Side::Key : Side::Value;
  }
  row.source.file = object.text("file");
  row.source.sha256 = object.text("sha256");
  row.source.calibration = object.text("calibration");
  const Object parents = object.object("parents");
  for (const auto& item : parents.json().items())
    row.source.parents.emplace_back(item.key(), parents.text(item.key().c_str()));
  row.weights = read_weights(object);
  row.window_nll = object.numbers("window_nll");
  row.window_kl = object.numbers("window_kl");
  if (static_cast<std::int64_t>(row.window_nll.size()) != windows || row.window_kl.size() != row.window_nll.size())
    object.wrong("window_nll", fmt::format("an array of {} numbers, one a window", windows));
  check_row(object, row);
  row.position_nll = object.numbers("position_nll");
  row.position_kl = object.numbers("position_kl");
  if (row.position_nll.size() != intervals || row.position_kl.size() != intervals)
    object.wrong("position_nll", fmt::format("an array of {} numbers, one an interval", intervals));
  for (const Object& layer : object.objects("layers")) {
    LayerDistribution& distribution = row.layers.emplace_back();
    for (const Side side : kSides) {
      if (layer.has(side_name(side)))
        distribution.sides[static_cast<std::size_t>(side)] = read_side(layer.object(side_name(side)));
    }
  }
  return row;
}

Evaluation read_evaluation(const Object& object) {
  Evaluation evaluation;
  evaluation.subject = read_subject(object);
  evaluation.subject.text = object.text("text");
  evaluation.subject.text_sha256 = object.text("text_sha256");
  evaluation.subject.text_tokens = object.whole("tokens");
  PerplexityReport& report = evaluation.report;
  report.seqlen = object.whole("seqlen");
  report.windows = object.whole("windows");
  if (object.has("prompt")) report.span.prompt = object.whole("prompt");        // earlier versions
  if (object.has("judge_from")) report.span.from = object.whole("judge_from");  // have neither
  if (report.span.prompt < 0 || report.span.prompt > report.seqlen) object.wrong("prompt", "a part of the window");
  if (report.span.from < 0 || report.span.from > report.seqlen) object.wrong("judge_from", "a position in the window");
  report.seconds = object.number("seconds");
  report.position_edges = object.wholes("position_edges");
  const std::vector<std::int64_t>& edges = report.position_edges;
  if (edges.size() < 2 || edges.front() != report.span.from ||
      !std::is_sorted(edges.begin(), edges.end(), std::less_equal<>()))
    object.wrong("position_edges",
                 fmt::format("an array of at least two ascending edges, the first of them {}", report.span.from));
  for (const Object& row : object.objects("results")) {
    VariantResult& result =
        report.results.emplace_back(read_row(row, report.windows, report.position_edges.size() - 1));
    if (!row.has("relative_time") &&
        report.results.front().seconds > 0)  // earlier versions: one run, one unquantized pass
      result.relative_time = result.seconds / report.results.front().seconds;
  }
  if (report.results.empty() || report.results.front().name != "none")
    object.wrong("results", "a list that begins with the unquantized cache 'none'");
  return evaluation;
}

PasskeyEvaluation read_passkey(const Object& object) {
  PasskeyEvaluation evaluation;
  evaluation.subject = read_subject(object);
  for (const Object& row : object.objects("results")) {
    PasskeyResult& result = evaluation.results.emplace_back();
    result.name = row.text("name");
    result.sha256 = row.text("sha256");
    result.weights = read_weights(row);
    for (const Object& cell : row.objects("cells")) {
      result.cells.push_back({cell.whole("length"), cell.whole("prompt_tokens"), cell.number("depth"),
                              static_cast<int>(cell.whole("found")), static_cast<int>(cell.whole("trials"))});
      const std::vector<std::string> continuations = cell.texts("continuations");
      if (static_cast<int>(continuations.size()) != result.cells.back().trials)
        cell.wrong("continuations", "one string for each trial");
      result.continuations.insert(result.continuations.end(), continuations.begin(), continuations.end());
    }
  }
  if (evaluation.results.empty() || evaluation.results.front().name != "none")
    object.wrong("results", "a list that begins with the unquantized cache 'none'");
  return evaluation;
}

TaskEvaluation read_tasks(const Object& object) {
  TaskEvaluation evaluation;
  evaluation.subject = read_subject(object);
  evaluation.subject.text = object.text("text");
  evaluation.subject.text_sha256 = object.text("text_sha256");
  TaskReport& report = evaluation.report;
  for (const Object& prompt : object.objects("prompts"))
    report.prompts.push_back({prompt.text("kind"), prompt.whole("length"), prompt.whole("prompt_tokens"),
                              prompt.truth("cut"), prompt.texts("answers")});
  if (report.prompts.empty()) object.wrong("prompts", "a list of at least one task");
  for (const Object& row : object.objects("results")) {
    TaskResult& result = report.results.emplace_back();
    result.name = row.text("name");
    result.sha256 = row.text("sha256");
    result.weights = read_weights(row);
    for (const Object& answer : row.objects("answers")) {
      result.answers.push_back({answer.text("text"), answer.number("score")});
      if (!(result.answers.back().score >= 0 && result.answers.back().score <= 1))
        answer.wrong("score", "a number from 0 to 1");
    }
    if (result.answers.size() != report.prompts.size()) row.wrong("answers", "one for each prompt");
  }
  if (report.results.empty() || report.results.front().name != "none")
    object.wrong("results", "a list that begins with the unquantized cache 'none'");
  return evaluation;
}

}  // namespace

ReportDocument read_report(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail(ErrorKind::Input, fmt::format("{}: is a folder; its report.json is needed", name));
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::Input, fmt::format("{}: cannot be read", name));
  std::ostringstream read;
  read << file.rdbuf();  // sets a bit where an iterator would throw
  if (!read) fail(ErrorKind::Format, fmt::format("{}: is no JSON: it is empty or cannot be read", name));
  const std::string content = std::move(read).str();
  const Json json = Json::parse(content, nullptr, false);
  if (json.is_discarded())
    fail(ErrorKind::Format, fmt::format("{}: is no JSON; a report.json of kvq-eval is needed", name));
  const Object root(name, "", json);
  if (!root.has("kvq_report")) {
    const bool old = root.has("model") && root.has("results");
    fail(ErrorKind::Format, old ? fmt::format("{}: is a report of an earlier version, without the hashes that tell "
                                              "what belongs together; run kvq-eval again",
                                              name)
                                : fmt::format("{}: is no report of kvq-eval (no key 'kvq_report')", name));
  }
  const std::string kind = root.text("kvq_report");
  ReportDocument document;
  if (kind == "passkey") {
    document.passkey = read_passkey(root);
    return document;
  }
  if (kind == "tasks") {
    document.tasks = read_tasks(root);
    return document;
  }
  if (kind == "experiment") {
    document.title = root.text("title");
    document.question = root.text("question");
    for (const Object& evaluation : root.objects("evaluations"))
      document.evaluations.push_back(read_evaluation(evaluation));
  } else if (kind == "perplexity") {
    document.evaluations.push_back(read_evaluation(root));
  } else {
    fail(ErrorKind::Format,
         fmt::format("{}: is a report of kind '{}'; known: perplexity, passkey, tasks, experiment", name, kind));
  }
  if (root.has("passkey")) document.passkey = read_passkey(root.object("passkey"));
  if (root.has("tasks")) document.tasks = read_tasks(root.object("tasks"));
  if (root.has("claims")) {
    for (const Object& claim : root.objects("claims"))
      document.claims.push_back({claim.text("statement"), claim.text("better"), claim.text("worse")});
  }
  if (root.has("commands")) document.commands = root.texts("commands");
  if (root.has("max_kl")) document.max_kl = root.number("max_kl");
  return document;
}

}  // namespace kvq
