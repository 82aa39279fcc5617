#include <algorithm>

#include <nlohmann/json.hpp>

#include <kvq/eval/report.h>

namespace kvq {

namespace {

using OrderedJson = nlohmann::ordered_json;

/// Like dump(2), with arrays of numbers on one line: a histogram is one thing, not eighty lines.
void write(const OrderedJson& json, const std::string& indent, std::string& text) {
  const auto scalar = [](const OrderedJson& value) {
    // File names may hold any bytes, and a greedy continuation may end inside a multi-byte character.
    return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  if (!json.is_structured() || json.empty()) {
    text += scalar(json);
    return;
  }
  const bool numbers = json.is_array() && std::all_of(json.begin(), json.end(), [](const OrderedJson& value) {
                         return value.is_number() || value.is_null();
                       });
  if (numbers) {
    std::string line;
    for (const OrderedJson& value : json) line += (line.empty() ? "" : ", ") + scalar(value);
    text += "[" + line + "]";
    return;
  }
  const std::string inner = indent + "  ";
  text += json.is_array() ? "[" : "{";
  bool first = true;
  for (const auto& item : json.items()) {
    text += (first ? "\n" : ",\n") + inner;
    first = false;
    if (json.is_object()) text += scalar(OrderedJson(item.key())) + ": ";
    write(item.value(), inner, text);
  }
  text += "\n" + indent + (json.is_array() ? "]" : "}");
}

std::string dump(const OrderedJson& json) {
  std::string text;
  write(json, "", text);
  return text + "\n";
}

OrderedJson optional_number(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson subject_head(const char* kind, const ReportSubject& subject) {
  OrderedJson json;
  json["kvq_report"] = kind;
  json["producer"] = subject.producer;
  json["model"] = subject.model;
  json["model_sha256"] = subject.model_sha256;
  json["tokenizer_sha256"] = subject.tokenizer_sha256;
  json["dtype"] = subject.dtype;
  json["bos"] = subject.bos;
  return json;
}

OrderedJson side_json(const std::optional<SideDistribution>& side) {
  if (!side) return nullptr;
  OrderedJson json;
  json["outlier_rate"] = side->outlier_rate;
  json["calibrated_outlier_rate"] = side->calibrated_outlier_rate;
  json["codebooks"] = side->codebooks;
  json["histogram"] = side->counts;
  json["below"] = side->below;
  json["above"] = side->above;
  return json;
}

OrderedJson parents_json(const VariantSource& source) {
  OrderedJson parents = OrderedJson::object();
  for (const auto& [name, sha256] : source.parents) parents[name] = sha256;
  return parents;
}

OrderedJson weights_json(const WeightsSource& weights) {
  if (!weights.used()) return nullptr;
  OrderedJson parents = OrderedJson::object();
  for (const auto& [name, sha256] : weights.parents) parents[name] = sha256;
  return {{"name", weights.name},
          {"bits_counted", weights.bits_counted},
          {"file", weights.file},
          {"sha256", weights.sha256},
          {"parents", parents}};
}

OrderedJson row_json(const VariantResult& result) {
  OrderedJson row;
  row["name"] = result.name;
  row["nll"] = result.nll;
  row["ppl"] = result.ppl;
  row["delta_nll"] = result.delta_nll;
  row["delta_nll_se"] = optional_number(result.delta_nll_se);
  row["kl_mean"] = result.kl_mean;
  row["kl_mean_se"] = optional_number(result.kl_mean_se);
  row["kl_p99"] = result.kl_p99;
  row["top1"] = result.top1;
  // What is no cache has nothing to count.
  row["bits_nominal"] = result.bits_nominal;
  row["bits_counted"] = result.counted ? OrderedJson(result.bits_counted) : OrderedJson(nullptr);
  row["bits_counted_32k"] = result.counted ? OrderedJson(result.bits_counted_32k) : OrderedJson(nullptr);
  row["cache_bytes"] = result.counted ? OrderedJson(result.cache_bytes) : OrderedJson(nullptr);
  row["table_bytes"] = result.table_bytes;
  row["seconds"] = result.seconds;
  row["relative_time"] = result.relative_time;
  row["cache"] = result.cache;
  row["only_layers"] = result.parts.layers.empty() ? OrderedJson(nullptr) : OrderedJson(result.parts.layers);
  row["only_side"] = result.parts.side ? OrderedJson(side_name(*result.parts.side)) : OrderedJson(nullptr);
  row["file"] = result.source.file;
  row["sha256"] = result.source.sha256;
  row["parents"] = parents_json(result.source);
  row["calibration"] = result.source.calibration;
  row["weights"] = weights_json(result.weights);
  row["window_nll"] = result.window_nll;
  row["window_kl"] = result.window_kl;
  row["position_nll"] = result.position_nll;
  row["position_kl"] = result.position_kl;
  row["layers"] = OrderedJson::array();
  for (const LayerDistribution& layer : result.layers) {
    row["layers"].push_back({{"key", side_json(layer.sides[0])}, {"value", side_json(layer.sides[1])}});
  }
  return row;
}

OrderedJson perplexity_object(const ReportSubject& subject, const PerplexityReport& report) {
  OrderedJson json = subject_head("perplexity", subject);
  json["text"] = subject.text;
  json["text_sha256"] = subject.text_sha256;
  json["tokens"] = subject.text_tokens;
  json["seqlen"] = report.seqlen;
  json["windows"] = report.windows;
  json["prompt"] = report.span.prompt > 0 ? OrderedJson(report.span.prompt) : OrderedJson(nullptr);
  json["judge_from"] = report.span.from;
  json["position_edges"] = report.position_edges;
  json["results"] = OrderedJson::array();
  for (const VariantResult& result : report.results) json["results"].push_back(row_json(result));
  json["seconds"] = report.seconds;
  json["command"] = subject.command;
  json["settings"] = subject.settings;
  return json;
}

OrderedJson passkey_object(const ReportSubject& subject, const std::vector<PasskeyResult>& results) {
  OrderedJson json = subject_head("passkey", subject);
  json["results"] = OrderedJson::array();
  for (const PasskeyResult& result : results) {
    OrderedJson row;
    row["name"] = result.name;
    row["cells"] = OrderedJson::array();
    std::size_t next = 0;
    for (const PasskeyCell& cell : result.cells) {
      OrderedJson continuations = OrderedJson::array();
      for (int trial = 0; trial < cell.trials; ++trial) continuations.push_back(result.continuations[next++]);
      row["cells"].push_back({{"length", cell.length},
                              {"prompt_tokens", cell.prompt_tokens},
                              {"depth", cell.depth},
                              {"found", cell.found},
                              {"trials", cell.trials},
                              {"continuations", continuations}});
    }
    row["sha256"] = result.sha256;
    row["cache"] = result.cache;
    row["weights"] = weights_json(result.weights);
    json["results"].push_back(std::move(row));
  }
  json["command"] = subject.command;
  json["settings"] = subject.settings;
  return json;
}

OrderedJson tasks_object(const TaskEvaluation& evaluation) {
  OrderedJson json = subject_head("tasks", evaluation.subject);
  json["text"] = evaluation.subject.text;
  json["text_sha256"] = evaluation.subject.text_sha256;
  json["prompts"] = OrderedJson::array();
  for (const TaskPrompt& prompt : evaluation.report.prompts) {
    json["prompts"].push_back({{"kind", prompt.kind},
                               {"length", prompt.length},
                               {"prompt_tokens", prompt.prompt_tokens},
                               {"cut", prompt.cut},
                               {"answers", prompt.answers}});
  }
  json["results"] = OrderedJson::array();
  for (const TaskResult& result : evaluation.report.results) {
    OrderedJson row;
    row["name"] = result.name;
    row["sha256"] = result.sha256;
    row["cache"] = result.cache;
    row["weights"] = weights_json(result.weights);
    row["scores"] = OrderedJson::array();
    for (const TaskScore& score : task_scores(evaluation.report, result)) {
      row["scores"].push_back({{"kind", score.kind},
                               {"length", score.length},
                               {"tasks", score.tasks},
                               {"score", score.score},
                               {"score_se", optional_number(score.score_se)},
                               {"delta", score.delta},
                               {"delta_se", optional_number(score.delta_se)}});
    }
    row["answers"] = OrderedJson::array();
    for (const TaskAnswer& answer : result.answers)
      row["answers"].push_back({{"score", answer.score}, {"text", answer.text}});
    json["results"].push_back(std::move(row));
  }
  json["command"] = evaluation.subject.command;
  json["settings"] = evaluation.subject.settings;
  return json;
}

OrderedJson claims_json(const ReportDocument& document) {
  OrderedJson claims = OrderedJson::array();
  for (const Claim& claim : document.claims) {
    OrderedJson results = OrderedJson::array();
    for (const Evaluation& evaluation : document.evaluations) {
      const auto result = judge(claim, evaluation.report);
      if (!result) continue;
      results.push_back({{"text", evaluation.subject.text},
                         {"difference", result->difference},
                         {"difference_se", optional_number(result->standard_error)},
                         {"verdict", result->verdict()}});
    }
    claims.push_back(
        {{"statement", claim.statement}, {"better", claim.better}, {"worse", claim.worse}, {"results", results}});
  }
  return claims;
}

}  // namespace

std::string perplexity_json(const ReportSubject& subject, const PerplexityReport& report) {
  return dump(perplexity_object(subject, report));
}

std::string passkey_json(const ReportSubject& subject, const std::vector<PasskeyResult>& results) {
  return dump(passkey_object(subject, results));
}

std::string document_json(const ReportDocument& document) {
  if (document.evaluations.empty() && document.passkey && !document.tasks)
    return passkey_json(document.passkey->subject, document.passkey->results);
  if (document.evaluations.empty() && document.tasks && !document.passkey) return dump(tasks_object(*document.tasks));
  OrderedJson json;
  if (document.evaluations.size() == 1 && document.title.empty()) {
    json = perplexity_object(document.evaluations.front().subject, document.evaluations.front().report);
  } else {
    json["kvq_report"] = "experiment";
    json["title"] = document.title;
    json["question"] = document.question;
    json["evaluations"] = OrderedJson::array();
    for (const Evaluation& evaluation : document.evaluations)
      json["evaluations"].push_back(perplexity_object(evaluation.subject, evaluation.report));
  }
  if (!document.claims.empty()) json["claims"] = claims_json(document);
  if (document.passkey) json["passkey"] = passkey_object(document.passkey->subject, document.passkey->results);
  if (document.tasks) json["tasks"] = tasks_object(*document.tasks);
  json["commands"] = document.commands;
  json["max_kl"] = document.max_kl;
  return dump(json);
}

}  // namespace kvq
