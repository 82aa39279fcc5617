#include <kvq/eval/report_reader.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <system_error>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <kvq/cache/kv_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/stats/summary.h>

namespace kvq {

namespace {

using Json = nlohmann::json;

constexpr double kLargest = 1e30;                      ///< nothing that a report holds comes near it
constexpr std::int64_t kMost = std::int64_t{1} << 53;  ///< nor to this, and sums of what is below do not overflow
constexpr double kRounding = 1e-4;  ///< what cannot be negative may be by so much where it was computed

constexpr std::int64_t kMostLayers = 4096, kMostTrials = 10'000;

/// Where a number lies if kvq-eval wrote it. What is not finite is written as null.
struct Bounds {
  double low, high;
  const char* what;
  bool or_null = false;

  bool hold(double value) const { return value >= low && value <= high; }
};
constexpr Bounds kAny{-kLargest, kLargest, "a number of ordinary size"};
constexpr Bounds kLoss{-kRounding, kLargest, "a loss (0 or more)"};
constexpr Bounds kKl{-kRounding, kLargest, "a divergence (0 or more)", true};
constexpr Bounds kPpl{1 - kRounding, std::numeric_limits<double>::max(), "a perplexity (1 or more)", true};
constexpr Bounds kShare{0, 1, "a share (0 to 1)"};
constexpr Bounds kBits{1e-9, 1e6, "a number of bits (above 0)"};
constexpr Bounds kNotNegative{0, kLargest, "a number of at least 0"};

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
  double number(const char* key, const Bounds& bounds) const { return number_of(at(key), key, bounds); }
  std::optional<double> maybe(const char* key, const Bounds& bounds) const {
    return has(key) ? std::optional(number(key, bounds)) : std::nullopt;
  }
  std::int64_t whole(const char* key, std::int64_t low, std::int64_t high = kMost) const {
    return whole_of(at(key), key, low, high);
  }
  bool truth(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) wrong(key, "true or false");
    return value.get<bool>();
  }
  std::vector<double> numbers(const char* key, const Bounds& bounds) const {
    std::vector<double> list;
    for (const Json& value : array(key)) list.push_back(number_of(value, element(key, list.size()), bounds));
    return list;
  }
  std::vector<std::int64_t> wholes(const char* key, std::int64_t low, std::int64_t high = kMost) const {
    std::vector<std::int64_t> list;
    for (const Json& value : array(key)) list.push_back(whole_of(value, element(key, list.size()), low, high));
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
  /// "FILE: 'results[1].top1' is 7, not a share (0 to 1): this is no report of kvq-eval"
  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const {
    const auto found = key.empty() ? json_.end() : json_.find(key);
    wrong(key, found == json_.end() ? Json(Json::value_t::discarded) : *found, wanted);
  }

 private:
  static std::string element(const char* key, std::size_t index) { return fmt::format("{}[{}]", key, index); }
  double number_of(const Json& value, const std::string& key, const Bounds& bounds) const {
    if (value.is_null() && bounds.or_null) return std::nan("");
    if (!value.is_number() || !bounds.hold(value.get<double>())) wrong(key, value, bounds.what);
    return value.get<double>();
  }
  std::int64_t whole_of(const Json& value, const std::string& key, std::int64_t low, std::int64_t high) const {
    // What does not fit 64 bits would wrap around.
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost)
                                                 : value.is_number_integer();
    if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
      wrong(key, value,
            high == kMost ? fmt::format("a whole number of at least {}", low)
                          : fmt::format("a whole number from {} to {}", low, high));
    return value.get<std::int64_t>();
  }
  [[noreturn]] void wrong(const std::string& key, const Json& value, const std::string& wanted) const {
    const std::string place = place_.empty() && key.empty() ? "the whole" : fmt::format("'{}{}'", place_, key),
                      is = value.is_primitive() && !value.is_discarded()
                               ? fmt::format("is {}, not", shortened(value.dump(-1, ' ', false, kReplace)))
                               : "is not";
    fail(ErrorKind::Format, fmt::format("{}: {} {} {}: this is no report of kvq-eval", file_, place, is, wanted));
  }

  static constexpr Json::error_handler_t kReplace = Json::error_handler_t::replace;
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
  side.outlier_rate = object.number("outlier_rate", kShare);
  side.calibrated_outlier_rate = object.number("calibrated_outlier_rate", kShare);
  side.counts = object.wholes("histogram", 0);
  if (side.counts.size() != static_cast<std::size_t>(kDistributionBins))
    object.wrong("histogram", fmt::format("an array of {} counts", kDistributionBins));
  side.below = object.whole("below", 0);
  side.above = object.whole("above", 0);
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
  weights.bits_counted = object.number("bits_counted", kBits);
  weights.file = object.text("file");
  weights.sha256 = object.text("sha256");
  const Object parents = object.object("parents");
  for (const auto& item : parents.json().items())
    weights.parents.emplace_back(item.key(), parents.text(item.key().c_str()));
  return weights;
}

/// How it was run. Nothing for the unquantized cache.
std::string read_cache(const Object& object) {
  const std::string cache = object.text("cache");
  const std::vector<std::string>& known = cache_kind_names();
  if (!cache.empty() && std::find(known.begin(), known.end(), cache) == known.end())
    object.wrong("cache", fmt::format("{}, or empty", fmt::join(known, ", ")));
  return cache;
}

/// The numbers of a row that follow from others of it. What was written with all digits agrees but for roundings.
void check_row(const Object& object, const VariantResult& row) {
  const auto agree = [](double a, double b) {
    return !std::isfinite(a) || !std::isfinite(b) || std::abs(a - b) <= 1e-6 * (1 + std::abs(b));
  };
  if (row.window_nll.empty()) return;
  if (!agree(row.nll, mean(row.window_nll))) object.wrong("nll", "the mean of 'window_nll'");
  if (!agree(row.kl_mean, mean(row.window_kl))) object.wrong("kl_mean", "the mean of 'window_kl'");
  if (!agree(std::log(row.ppl), row.nll)) object.wrong("ppl", "e to the power of 'nll'");
}

/// Its difference from the unquantized row. Reports that were merged may have had another one, which lost nearly the
/// same.
void check_difference(const Object& object, const VariantResult& row, const VariantResult& unquantized) {
  if (std::abs(row.delta_nll - (row.nll - unquantized.nll)) > 2e-3)
    object.wrong("delta_nll", fmt::format("'nll' minus that of 'none', {}", row.nll - unquantized.nll));
}

VariantResult read_row(const Object& object, std::int64_t windows, std::size_t intervals) {
  VariantResult row;
  row.name = object.text("name");
  row.nll = object.number("nll", kLoss);
  row.ppl = object.number("ppl", kPpl);
  row.delta_nll = object.number("delta_nll", kAny);
  row.delta_nll_se = object.maybe("delta_nll_se", kNotNegative);
  row.kl_mean = object.number("kl_mean", kKl);
  row.kl_mean_se = object.maybe("kl_mean_se", kNotNegative);
  row.kl_p99 = object.number("kl_p99", kKl);
  row.top1 = object.number("top1", kShare);
  row.bits_nominal = object.number("bits_nominal", kBits);
  row.counted = object.has("bits_counted");
  if (row.counted) {
    row.bits_counted = object.number("bits_counted", kBits);
    row.bits_counted_32k = object.number("bits_counted_32k", kBits);
    row.cache_bytes = object.whole("cache_bytes", 1);
  }
  row.table_bytes = object.whole("table_bytes", 0);
  row.seconds = object.number("seconds", kNotNegative);
  row.relative_time = object.maybe("relative_time", kNotNegative).value_or(1.0);
  row.cache = read_cache(object);
  if (object.has("only_layers")) {
    for (const std::int64_t layer : object.wholes("only_layers", 0, kMostLayers))
      row.parts.layers.push_back(static_cast<int>(layer));
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
  row.window_nll = object.numbers("window_nll", kLoss);
  row.window_kl = object.numbers("window_kl", kKl);
  if (static_cast<std::int64_t>(row.window_nll.size()) != windows || row.window_kl.size() != row.window_nll.size())
    object.wrong("window_nll", fmt::format("an array of {} numbers, one a window", windows));
  check_row(object, row);
  row.position_nll = object.numbers("position_nll", kLoss);
  row.position_kl = object.numbers("position_kl", kKl);
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
  evaluation.subject.text_tokens = object.whole("tokens", 2);
  PerplexityReport& report = evaluation.report;
  report.seqlen = object.whole("seqlen", 2);
  report.windows = object.whole("windows", 1);
  // Earlier versions have neither.
  if (object.has("prompt")) report.span.prompt = object.whole("prompt", 0, report.seqlen - 1);
  if (object.has("judge_from")) report.span.from = object.whole("judge_from", 0, report.seqlen - 2);
  report.seconds = object.number("seconds", kNotNegative);
  report.position_edges = object.wholes("position_edges", 0);
  const std::vector<std::int64_t>& edges = report.position_edges;
  if (edges.size() < 2 || edges.front() != report.span.from || edges.back() != report.seqlen - 1 ||
      !std::is_sorted(edges.begin(), edges.end(), std::less_equal<>()))
    object.wrong("position_edges",
                 fmt::format("an array of ascending edges from {} to {}", report.span.from, report.seqlen - 1));
  for (const Object& row : object.objects("results")) {
    VariantResult& result =
        report.results.emplace_back(read_row(row, report.windows, report.position_edges.size() - 1));
    check_difference(row, result, report.results.front());
    if (!row.has("relative_time") &&
        report.results.front().seconds > 0)  // earlier versions: one run, one unquantized pass
      result.relative_time = result.seconds / report.results.front().seconds;
  }
  if (report.results.empty() || report.results.front().name != "none")
    object.wrong("results", "a list that begins with the unquantized cache 'none'");
  return evaluation;
}

/// All rows of a grid answer the same prompts.
bool same_prompts(const std::vector<PasskeyCell>& a, const std::vector<PasskeyCell>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PasskeyCell& x, const PasskeyCell& y) {
    return std::tie(x.length, x.prompt_tokens, x.depth, x.trials) ==
           std::tie(y.length, y.prompt_tokens, y.depth, y.trials);
  });
}

PasskeyEvaluation read_passkey(const Object& object) {
  PasskeyEvaluation evaluation;
  evaluation.subject = read_subject(object);
  for (const Object& row : object.objects("results")) {
    PasskeyResult& result = evaluation.results.emplace_back();
    result.name = row.text("name");
    result.sha256 = row.text("sha256");
    result.weights = read_weights(row);
    if (row.has("cache")) result.cache = read_cache(row);  // earlier versions do not say
    for (const Object& cell : row.objects("cells")) {
      const std::int64_t length = cell.whole("length", 1), tokens = cell.whole("prompt_tokens", 1, length),
                         trials = cell.whole("trials", 1, kMostTrials), found = cell.whole("found", 0, trials);
      result.cells.push_back(
          {length, tokens, cell.number("depth", kShare), static_cast<int>(found), static_cast<int>(trials)});
      const std::vector<std::string> continuations = cell.texts("continuations");
      if (static_cast<int>(continuations.size()) != result.cells.back().trials)
        cell.wrong("continuations", "one string for each trial");
      result.continuations.insert(result.continuations.end(), continuations.begin(), continuations.end());
    }
    if (!same_prompts(result.cells, evaluation.results.front().cells)) row.wrong("cells", "those of the first row");
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
    report.prompts.push_back({prompt.text("kind"), prompt.whole("length", 0), prompt.whole("prompt_tokens", 1),
                              prompt.truth("cut"), prompt.texts("answers")});
  if (report.prompts.empty()) object.wrong("prompts", "a list of at least one task");
  for (const Object& row : object.objects("results")) {
    TaskResult& result = report.results.emplace_back();
    result.name = row.text("name");
    result.sha256 = row.text("sha256");
    result.weights = read_weights(row);
    if (row.has("cache")) result.cache = read_cache(row);  // earlier versions do not say
    for (const Object& answer : row.objects("answers")) {
      result.answers.push_back({answer.text("text"), answer.number("score", kShare)});
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
    fail(ErrorKind::Format, fmt::format("{}: is a report of kind '{}'; known: perplexity, passkey, tasks, experiment",
                                        name, shortened(kind)));
  }
  if (root.has("passkey")) document.passkey = read_passkey(root.object("passkey"));
  if (root.has("tasks")) document.tasks = read_tasks(root.object("tasks"));
  if (root.has("claims")) {
    for (const Object& claim : root.objects("claims"))
      document.claims.push_back({claim.text("statement"), claim.text("better"), claim.text("worse")});
  }
  if (root.has("commands")) document.commands = root.texts("commands");
  if (root.has("max_kl")) document.max_kl = root.number("max_kl", kNotNegative);
  return document;
}

}  // namespace kvq
