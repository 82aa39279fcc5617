#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tool.h"
#include "kvq-eval/inspection.h"

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/error.h>

namespace kvq::apps {

namespace {

using Json = nlohmann::ordered_json;

struct Spread {
  double rms = 0, largest = 0;
};

Spread spread_of(const std::vector<float>& values) {
  double squares = 0, largest = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * value;
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  return {std::sqrt(squares / static_cast<double>(values.size())), largest};
}

/// Of blocks `[kv_heads, head_dim, head_dim]`.
double mean_diagonal(const std::vector<double>& blocks, const KvShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  double sum = 0;
  for (std::size_t index = 0; index < blocks.size(); ++index)
    if (index / dim % dim == index % dim) sum += blocks[index];
  return sum / shape.width();
}

}  // namespace

std::string short_number(double value) { return value == 0 ? "0" : fmt::format("{:.4g}", value); }

void add_provenance(Inspection& inspection, Json& json, const Provenance& provenance, const KvShape& shape) {
  auto& facts = inspection.facts;
  facts.emplace_back("model", provenance.model_sha256);
  facts.emplace_back("tokenizer", provenance.tokenizer_sha256);
  facts.emplace_back("text", provenance.text_sha256);
  json["model_sha256"] = provenance.model_sha256;
  json["tokenizer_sha256"] = provenance.tokenizer_sha256;
  json["text_sha256"] = provenance.text_sha256;
  json["parents"] = Json::object();
  for (const auto& [name, sha256] : provenance.parents) {
    facts.emplace_back("made from", fmt::format("{} {}", name, sha256));
    json["parents"][name] = sha256;
  }
  facts.emplace_back("shape", fmt::format("{} layers, {} query heads, {} kv heads of {}", shape.layers, shape.heads,
                                          shape.kv_heads, shape.head_dim));
  json["layers"] = shape.layers;
  json["heads"] = shape.heads;
  json["kv_heads"] = shape.kv_heads;
  json["head_dim"] = shape.head_dim;
  std::string config = provenance.config;
  config.erase(config.find_last_not_of('\n') + 1);
  if (!config.empty()) facts.emplace_back("settings", config);
  json["config"] = provenance.config;
}

void add_rope(Inspection& inspection, Json& json, const ModelRope& rope) {
  std::string text = fmt::format("{}, theta {:g}, {} channels rotate", rope.kind, rope.theta, rope.rotary_dim);
  if (rope.kind != "default") text += fmt::format(", factor {:g}", rope.factor);
  inspection.facts.emplace_back("rope", text);
  json["rope"] = {{"kind", rope.kind}, {"theta", rope.theta}, {"rotary_dim", rope.rotary_dim}, {"factor", rope.factor}};
  if (!rope.has_local_layers()) return;
  const auto local = std::count(rope.is_local.begin(), rope.is_local.end(), 1);
  inspection.facts.emplace_back("local layers", fmt::format("{} of {}, windows of {} tokens, theta {:g}", local,
                                                            rope.is_local.size(), rope.window, rope.local.theta));
  json["local_layers"] = {{"layers", rope.is_local}, {"window", rope.window}, {"theta", rope.local.theta}};
}

void add_sample(Inspection& inspection, Json& json, const CalibrationHeader& header) {
  std::vector<std::pair<std::string, int>> domains;
  for (const std::string& domain : header.domains) {
    const auto known =
        std::find_if(domains.begin(), domains.end(), [&](const auto& entry) { return entry.first == domain; });
    if (known == domains.end()) {
      domains.emplace_back(domain, 1);
    } else {
      ++known->second;
    }
  }
  std::string list;
  json["domains"] = Json::object();
  for (const auto& [domain, count] : domains) {
    list += fmt::format("{}{} of {}", list.empty() ? "" : ", ", count, domain);
    json["domains"][domain] = count;
  }
  double loss = 0;
  for (const double value : header.loss) loss += value / static_cast<double>(header.loss.size());
  inspection.facts.emplace_back(
      "sequences", fmt::format("{} of {} tokens ({}), BOS {}", header.sequences, header.seqlen, list, header.bos));
  inspection.facts.emplace_back("mean loss", fmt::format("{:.6g} nats, perplexity {:.5g}", loss, std::exp(loss)));
  json["sequences"] = header.sequences;
  json["seqlen"] = header.seqlen;
  json["bos"] = header.bos;
  inspection.facts.emplace_back("query heads", header.query_heads);
  json["query_heads"] = header.query_heads;
  json["loss_mean"] = loss;
}

Inspection inspect_calibration(const std::filesystem::path& path, Json& json, RunContext& context) {
  const CalibrationReader reader(path);
  const CalibrationHeader& header = reader.header();
  Inspection inspection;
  add_provenance(inspection, json, header.provenance, header.shape);
  add_rope(inspection, json, header.rope);
  add_sample(inspection, json, header);

  inspection.facts.emplace_back("gradients", header.gradients ? "of every element" : "none (made forward only)");
  inspection.facts.emplace_back("metrics", header.metrics ? "of keys and values" : "none");
  json["gradients"] = header.gradients;
  json["metrics"] = header.metrics;
  std::vector<std::string> columns = {"layer", "key rms", "key max", "value rms", "value max"};
  const auto pair = [&](bool there, const char* key, const char* value) {
    if (!there) return;
    columns.emplace_back(key);
    columns.emplace_back(value);
  };
  pair(header.gradients, "key grad rms", "value grad rms");
  pair(header.metrics, "key metric", "value metric");
  columns.emplace_back("mass / query");
  Table table{columns, {}};
  json["layer"] = Json::array();
  context.progress.begin("layers", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    context.cancel.check();
    const Spread key = spread_of(reader.values(layer, Side::Key)), value = spread_of(reader.values(layer, Side::Value));
    reader.query_moment(layer);
    double mass = 0;
    for (const float share : reader.attention_mass(layer)) mass += share;
    mass /= static_cast<double>(header.total_tokens() * header.shape.heads);
    std::vector<std::string> row = {std::to_string(layer), short_number(key.rms), short_number(key.largest),
                                    short_number(value.rms), short_number(value.largest)};
    Json entry = {
        {"key_rms", key.rms}, {"key_max", key.largest}, {"value_rms", value.rms}, {"value_max", value.largest}};
    const auto add = [&](const char* name, double number) {
      row.push_back(short_number(number));
      entry[name] = number;
    };
    if (header.gradients) {
      add("key_grad_rms", spread_of(reader.gradients(layer, Side::Key)).rms);
      add("value_grad_rms", spread_of(reader.gradients(layer, Side::Value)).rms);
    }
    if (header.metrics) {
      add("key_metric_mean", mean_diagonal(reader.metric(layer, Side::Key), header.shape));
      add("value_metric_mean", mean_diagonal(reader.metric(layer, Side::Value), header.shape));
    }
    add("attention_mass_per_query", mass);
    table.rows.push_back(std::move(row));
    json["layer"].push_back(std::move(entry));
    context.progress.advance(1);
  }
  context.progress.end();
  inspection.tables.push_back(std::move(table));
  return inspection;
}

Inspection inspect_thresholds(const std::filesystem::path& path, Json& json) {
  const ThresholdsFile file = read_thresholds(path);
  Inspection inspection;
  add_provenance(inspection, json, file.provenance, file.shape);
  inspection.facts.emplace_back("cap", file.cap == 0 ? "none" : fmt::format("{:g} of a token's keys", file.cap));
  json["cap"] = file.cap;
  Table table{{"outliers", "sinks", "tensor", "rate %", "least", "most", "capped %", "online %", "lowest", "highest",
               "constant"},
              {}};
  json["sets"] = Json::array();
  for (const ThresholdSet& set : file.sets) {
    Json entry = {{"fraction", set.fraction}, {"sinks", set.sinks}};
    for (const ThresholdTensor tensor : {ThresholdTensor::Key, ThresholdTensor::KeyPostRope, ThresholdTensor::Value}) {
      const char* name = threshold_tensor_name(tensor);
      double rate = 0, least = 1, most = 0, capped = 0, online = 0, lowest = INFINITY, highest = -INFINITY;
      std::int64_t constant = 0;
      for (int layer = 0; layer < file.shape.layers; ++layer) {
        const ChannelThresholds& channels =
            set.layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(tensor)];
        const double share = 1.0 / file.shape.layers;
        rate += share * channels.outlier_rate;
        least = std::min(least, channels.outlier_rate);
        most = std::max(most, channels.outlier_rate);
        capped += share * channels.capped_outlier_rate;
        online += share * channels.online_outlier_rate;
        for (std::size_t channel = 0; channel < channels.lower.size(); ++channel) {
          const float lower = channels.lower[channel], upper = channels.upper[channel];
          lowest = std::min<double>(lowest, lower);
          highest = std::max<double>(highest, upper);
          constant += lower == upper ? 1 : 0;
        }
      }
      table.rows.push_back({fmt::format("{:g}", set.fraction), std::to_string(set.sinks), name,
                            short_number(100 * rate), short_number(100 * least), short_number(100 * most),
                            short_number(100 * capped), short_number(100 * online), short_number(lowest),
                            short_number(highest), std::to_string(constant)});
      entry[name] = {{"outlier_rate", rate},          {"outlier_rate_least", least},   {"outlier_rate_most", most},
                     {"capped_outlier_rate", capped}, {"online_outlier_rate", online}, {"lowest_threshold", lowest},
                     {"highest_threshold", highest},  {"constant_channels", constant}};
    }
    json["sets"].push_back(std::move(entry));
  }
  inspection.tables.push_back(std::move(table));
  return inspection;
}

}  // namespace kvq::apps
