#include <kvq/eval/report_charts.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include <kvq/stats/summary.h>

namespace kvq {

namespace {

/// "nuq3-1%" of "nuq3-1% [layer 7 key]" and of "nuq3-1% (code)".
std::string recipe_of(const VariantResult& result) {
  std::string name = result.name;
  if (!result.source.calibration.empty()) {
    const std::string suffix = fmt::format(" ({})", result.source.calibration);
    if (const auto at = name.find(suffix); at != std::string::npos) name.erase(at, suffix.size());
  }
  return name.substr(0, name.find(" [layer"));
}

const char* plural(Side side) { return side == Side::Key ? "keys" : "values"; }

template <typename Value>
std::size_t index_in(std::vector<Value>& values, const Value& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found == values.end()) values.push_back(value);
  return static_cast<std::size_t>(std::find(values.begin(), values.end(), value) - values.begin());
}

void put(HeatMap& map, std::size_t row, std::size_t column, double value, const std::string& label) {
  if (map.cells.size() <= row) map.cells.resize(row + 1), map.labels.resize(row + 1);
  for (auto& cells : map.cells) cells.resize(std::max(cells.size(), column + 1));
  for (auto& labels : map.labels) labels.resize(std::max(labels.size(), column + 1));
  map.cells[row][column] = value;
  map.labels[row][column] = label;
}

/// Rows that were made before a later column was known.
void even(HeatMap& map) {
  for (auto& cells : map.cells) cells.resize(map.columns.size());
  for (auto& labels : map.labels) labels.resize(map.columns.size());
}

}  // namespace

std::string recipe_family(const std::string& name) {
  const std::string budget = ",budget=";
  if (const auto at = name.find(budget); at != std::string::npos && name.find("evict=") != std::string::npos)
    return std::string(name).erase(at, name.find_first_of(",/ ", at + 1) - at);
  std::string family;
  for (std::size_t at = 0; at < name.size(); ++at) {
    const bool word_begins = at == 0 || name[at - 1] == '=' || name[at - 1] == '/';
    family += name[at];
    if (!word_begins || std::isalpha(static_cast<unsigned char>(name[at])) == 0) continue;
    if (at + 1 < name.size() && name[at + 1] == '=') continue;  // the side of "K=nuq3"
    while (at + 1 < name.size() && std::isalpha(static_cast<unsigned char>(name[at + 1])) != 0) family += name[++at];
    const std::size_t digits = at;
    const auto is_digit = [&](std::size_t place) {
      return place < name.size() && std::isdigit(static_cast<unsigned char>(name[place])) != 0;
    };
    while (is_digit(at + 1) || (at > digits && name[at + 1] == '.' && is_digit(at + 2))) ++at;  // 3, 1.5
    if (at > digits) family += 'B';
  }
  return family;
}

Chart rate_distortion(const PerplexityReport& report, Damage damage) {
  const bool kl = damage == Damage::Kl;
  Chart chart;
  chart.title = kl ? "KL divergence against counted bits" : "ΔNLL against counted bits";
  chart.x_label = fmt::format("counted bits per value at {} tokens", report.seqlen);
  chart.y_label = kl ? "mean KL, nats" : "ΔNLL, nats per token";
  chart.log_y = true;
  std::map<std::string, std::size_t> families;
  for (std::size_t index = 1; index < report.results.size(); ++index) {
    const VariantResult& result = report.results[index];
    if (!result.counted) continue;
    const std::string family = recipe_family(result.name);
    const auto [known, is_new] = families.emplace(family, chart.series.size());
    if (is_new) {
      ChartSeries series;
      series.name = family;
      series.colour = static_cast<int>(chart.series.size());
      chart.series.push_back(std::move(series));
    }
    const double value = kl ? result.kl_mean : result.delta_nll;
    const auto error = kl ? result.kl_mean_se : result.delta_nll_se;
    chart.series[known->second].points.push_back({result.bits_counted, value, error, result.name});
    chart.text += fmt::format("{}: {:.2f} bits, {:.4g}{}. ", result.name, result.bits_counted, value,
                              error ? fmt::format(" ± {:.2g}", *error) : "");
  }
  for (ChartSeries& series : chart.series) {
    if (series.points.size() == 1) series.name = series.points.front().label;
    std::sort(series.points.begin(), series.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return chart;
}

Chart by_position(const PerplexityReport& report, PerPosition what) {
  const bool kl = what == PerPosition::Kl;
  Chart chart;
  chart.title = kl ? "KL divergence by position in the window" : "NLL by position in the window";
  chart.x_label = "tokens before the predicted one";
  chart.y_label = kl ? "mean KL, nats" : "mean NLL, nats per token";
  chart.log_x = true;
  chart.log_y = kl;
  std::size_t curves = 0;
  for (std::size_t index = kl ? 1 : 0; index < report.results.size(); ++index) {
    const VariantResult& result = report.results[index];
    if (!result.parts.all() || (index > 0 && curves++ >= kMostCurves)) continue;
    ChartSeries series;
    series.name = result.name;
    series.colour = index == 0 ? kSeriesColours - 1 : static_cast<int>(curves - 1);
    series.dashed = index == 0;
    series.marks = false;
    const std::vector<double>& values = kl ? result.position_kl : result.position_nll;
    for (std::size_t interval = 0; interval < values.size(); ++interval) {
      // Interval [a, b) predicts from a + 1 to b tokens; drawn at the geometric middle.
      const double first = static_cast<double>(report.position_edges[interval] + 1),
                   last = static_cast<double>(report.position_edges[interval + 1]);
      // Exact sinks: no damage at all, and no place on a logarithmic axis.
      if (!kl || values[interval] > 1e-9)
        series.points.push_back({std::sqrt(first * last), values[interval], std::nullopt, ""});
    }
    if (!values.empty())
      chart.text += fmt::format("{}: {:.4g} after {} tokens, {:.4g} at the end. ", result.name, values.front(),
                                report.position_edges.front() + 1, values.back());
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::optional<HeatMap> outlier_rates(const PerplexityReport& report) {
  HeatMap map;
  map.title = "Exact values (outliers) by layer";
  map.column_name = "layer";
  map.value_name = "% of values";
  for (const VariantResult& result : report.results) {
    for (const Side side : kSides) {
      std::vector<std::optional<double>> cells;
      std::vector<double> known;
      double calibrated = 0;
      for (const LayerDistribution& layer : result.layers) {
        const auto& distribution = layer.sides[static_cast<std::size_t>(side)];
        cells.push_back(distribution ? std::optional(100 * distribution->outlier_rate) : std::nullopt);
        if (!distribution) continue;
        known.push_back(*cells.back());
        calibrated += 100 * distribution->calibrated_outlier_rate;
      }
      if (known.empty() || *std::max_element(known.begin(), known.end()) == 0) continue;
      map.rows.push_back(fmt::format("{} {}", result.name, plural(side)));
      map.text += fmt::format("{}: mean {:.3g} %, calibrated {:.3g} %. ", map.rows.back(), mean(known),
                              calibrated / static_cast<double>(known.size()));
      map.cells.push_back(std::move(cells));
    }
  }
  if (map.rows.empty()) return std::nullopt;
  std::size_t layers = 0;
  for (const auto& cells : map.cells) layers = std::max(layers, cells.size());
  for (std::size_t layer = 0; layer < layers; ++layer) map.columns.push_back(std::to_string(layer));
  for (auto& cells : map.cells) cells.resize(layers);
  return map;
}

std::optional<HeatMap> sensitivity(const PerplexityReport& report) {
  HeatMap map;
  map.title = "Damage when one layer is quantized: mean KL";
  map.column_name = "layer";
  map.value_name = "mean KL, nats";
  map.log = true;
  int layers = 0;
  for (const VariantResult& result : report.results) {
    if (result.parts.layers.size() == 1) layers = std::max(layers, result.parts.layers.front() + 1);
  }
  if (layers == 0) return std::nullopt;
  for (int layer = 0; layer < layers; ++layer) map.columns.push_back(std::to_string(layer));
  for (const VariantResult& result : report.results) {
    if (result.parts.layers.size() != 1) continue;
    const std::string row =
        recipe_of(result) + " " + (result.parts.side ? plural(*result.parts.side) : "keys and values");
    put(map, index_in(map.rows, row), static_cast<std::size_t>(result.parts.layers.front()), result.kl_mean, "");
  }
  even(map);
  map.labels.clear();
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    std::size_t most = 0;
    for (std::size_t layer = 0; layer < map.columns.size(); ++layer) {
      if (map.cells[row][layer].value_or(-1) > map.cells[row][most].value_or(-1)) most = layer;
    }
    map.text += fmt::format("{}: most in layer {} ({:.4g}). ", map.rows[row], most, map.cells[row][most].value_or(0));
  }
  return map;
}

std::vector<HeatMap> calibration_matrices(const std::vector<Evaluation>& evaluations) {
  std::vector<std::string> recipes, texts;
  std::vector<HeatMap> maps;
  for (const Evaluation& evaluation : evaluations) {
    const std::size_t column = texts.size();
    texts.push_back(evaluation.subject.text);
    for (const VariantResult& result : evaluation.report.results) {
      if (result.source.calibration.empty() || !result.parts.all()) continue;
      const std::size_t index = index_in(recipes, recipe_of(result));
      if (index == maps.size()) maps.emplace_back();
      put(maps[index], index_in(maps[index].rows, result.source.calibration), column, result.delta_nll,
          fmt::format("{:.3g}", result.delta_nll));
    }
  }
  std::erase_if(maps, [](const HeatMap& map) { return map.rows.size() < 2; });
  for (std::size_t index = 0; index < maps.size(); ++index) {
    HeatMap& map = maps[index];
    map.title = fmt::format("ΔNLL of {} by calibration (rows) and judged text (columns)", recipes[index]);
    map.columns = texts;
    map.column_name = "judged text";
    map.value_name = "ΔNLL, nats";
    even(map);
    for (std::size_t row = 0; row < map.rows.size(); ++row) {
      for (std::size_t column = 0; column < texts.size(); ++column) {
        if (map.cells[row][column])
          map.text += fmt::format("{} on {}: {}. ", map.rows[row], texts[column], map.labels[row][column]);
      }
    }
  }
  return maps;
}

HeatMap passkey_grid(const PasskeyResult& result) {
  HeatMap map;
  map.title = fmt::format("Keys found: {}", result.name);
  map.column_name = "prompt length, tokens";
  map.value_name = "share found";
  map.low = 0;
  map.high = 1;
  for (const PasskeyCell& cell : result.cells) {
    const std::size_t row = index_in(map.rows, fmt::format("depth {:g} %", std::round(cell.depth * 1e4) / 100));
    const std::size_t column = index_in(map.columns, std::to_string(cell.length));
    put(map, row, column, static_cast<double>(cell.found) / cell.trials, fmt::format("{}/{}", cell.found, cell.trials));
    map.text += fmt::format("{} tokens, {}: {} of {}. ", cell.length, map.rows[row], cell.found, cell.trials);
  }
  even(map);
  return map;
}

std::optional<Histogram> side_histogram(const VariantResult& result, int layer, Side side) {
  if (static_cast<std::size_t>(layer) >= result.layers.size()) return std::nullopt;
  const auto& distribution = result.layers[static_cast<std::size_t>(layer)].sides[static_cast<std::size_t>(side)];
  if (!distribution) return std::nullopt;
  Histogram histogram;
  histogram.title = fmt::format("layer {} {}", layer, plural(side));
  histogram.low = -kDistributionReach;
  histogram.high = kDistributionReach;
  histogram.counts = distribution->counts;
  histogram.bounds = {-1, 1};
  for (const std::vector<float>& book : distribution->codebooks)
    histogram.ticks.insert(histogram.ticks.end(), book.begin(), book.end());
  std::int64_t total = distribution->below + distribution->above;
  for (const std::int64_t count : distribution->counts) total += count;
  std::string levels;
  for (const float level : distribution->codebooks.front())
    levels += fmt::format("{}{:.3g}", levels.empty() ? "" : ", ", level);
  histogram.text =
      fmt::format("{} values, {:.2g} % exact, {} beyond ±{:g}; levels {}", total, 100 * distribution->outlier_rate,
                  distribution->below + distribution->above, kDistributionReach,
                  distribution->codebooks.size() > 1 ? "of several codebooks" : levels);
  return histogram;
}

}  // namespace kvq
