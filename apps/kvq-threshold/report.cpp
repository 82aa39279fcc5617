#include "kvq-threshold/report.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/report/table.h>

namespace kvq::apps {

namespace {

using Json = nlohmann::ordered_json;

constexpr ThresholdTensor kTensors[] = {ThresholdTensor::Key, ThresholdTensor::KeyPostRope, ThresholdTensor::Value};

/// The rate that a cache would meet: static thresholds (under the cap) for keys, the rule per token for values.
struct Column {
  const char* title;
  ThresholdTensor tensor;
  double ChannelThresholds::*rate;
};
constexpr Column kColumns[] = {
    {"keys", ThresholdTensor::Key, &ChannelThresholds::outlier_rate},
    {"keys, capped", ThresholdTensor::Key, &ChannelThresholds::capped_outlier_rate},
    {"rotated keys", ThresholdTensor::KeyPostRope, &ChannelThresholds::outlier_rate},
    {"values, static", ThresholdTensor::Value, &ChannelThresholds::outlier_rate},
    {"values, per token", ThresholdTensor::Value, &ChannelThresholds::online_outlier_rate},
};

std::string percent(double rate) { return fmt::format("{:.3f} %", 100 * rate); }

}  // namespace

std::string thresholds_as_text(const ThresholdsFile& file, bool every_layer) {
  Table table;
  table.header = every_layer ? std::vector<std::string>{"outliers", "sinks", "layer"}
                             : std::vector<std::string>{"outliers", "sinks", "over layers"};
  for (const Column& column : kColumns) {
    if (file.cap == 0 && column.rate == &ChannelThresholds::capped_outlier_rate) continue;
    table.header.push_back(column.title);
  }
  for (const ThresholdSet& set : file.sets) {
    const std::vector<std::string> start = {fmt::format("{}", set.fraction), fmt::format("{}", set.sinks)};
    const auto add_row = [&](const std::string& name, auto value_of) {
      std::vector<std::string> row = start;
      row.push_back(name);
      for (const Column& column : kColumns) {
        if (file.cap == 0 && column.rate == &ChannelThresholds::capped_outlier_rate) continue;
        std::vector<double> rates;
        for (const auto& layer : set.layers) rates.push_back(layer[static_cast<int>(column.tensor)].*column.rate);
        row.push_back(percent(value_of(rates)));
      }
      table.rows.push_back(row);
    };
    if (every_layer) {
      for (std::size_t layer = 0; layer < set.layers.size(); ++layer)
        add_row(fmt::format("{}", layer), [&](const std::vector<double>& rates) { return rates[layer]; });
    } else {
      add_row("least", [](const std::vector<double>& rates) { return *std::min_element(rates.begin(), rates.end()); });
      add_row("mean", [](const std::vector<double>& rates) {
        double sum = 0;
        for (double rate : rates) sum += rate;
        return sum / static_cast<double>(rates.size());
      });
      add_row("largest",
              [](const std::vector<double>& rates) { return *std::max_element(rates.begin(), rates.end()); });
    }
  }
  return to_text(table);
}

std::string thresholds_as_json(const ThresholdsFile& file) {
  Json sets = Json::array();
  for (const ThresholdSet& set : file.sets) {
    Json layers = Json::array();
    for (std::size_t layer = 0; layer < set.layers.size(); ++layer) {
      Json entry = {{"layer", layer}};
      for (ThresholdTensor tensor : kTensors) {
        const ChannelThresholds& found = set.layers[layer][static_cast<int>(tensor)];
        entry[threshold_tensor_name(tensor)] = {{"outlier_rate", found.outlier_rate},
                                                {"capped_outlier_rate", found.capped_outlier_rate},
                                                {"online_outlier_rate", found.online_outlier_rate}};
      }
      layers.push_back(std::move(entry));
    }
    sets.push_back({{"fraction", set.fraction}, {"sinks", set.sinks}, {"layers", std::move(layers)}});
  }
  return Json({{"cap", file.cap}, {"sets", std::move(sets)}}).dump(2);
}

}  // namespace kvq::apps
