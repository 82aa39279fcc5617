#pragma once
// Charts as inline SVG. They take colours and fonts from the page around them (html.h), so one drawing serves light,
// dark and paper. Each has a text alternative; values of single marks show on hovering.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvq {

inline constexpr int kSeriesColours = 8;

struct ChartPoint {
  double x = 0, y = 0;
  std::optional<double> error;  ///< drawn as a bar of ± this
  std::string label;            ///< beside the mark where there is room, and on hovering
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;
  int colour = 0;  ///< also chooses the shape of the marks
  bool line = true, marks = true, dashed = false;
};

/// Points whose x or y is not finite are left out.
struct Chart {
  std::string title, text;  ///< `text`: what a reader who cannot see the chart is told after the title
  std::string x_label, y_label;
  bool log_x = false, log_y = false;  ///< where all values are positive; otherwise linear
  std::vector<ChartSeries> series;
};

/// Title, drawing and, for more than one series, a legend: an HTML `<figure>`.
std::string chart_figure(const Chart& chart);

struct HeatMap {
  std::string title, text;
  std::string row_name, column_name;  ///< what rows and columns are
  std::vector<std::string> rows, columns;
  std::vector<std::vector<std::optional<double>>> cells;  ///< `[rows, columns]`; absent ones stay grey
  std::vector<std::vector<std::string>> labels;           ///< `[rows, columns]`, written into the cells; may be empty
  bool log = false;                                       ///< shade by the logarithm, where all values are positive
  std::optional<double> low, high;                        ///< ends of the shading; absent: those of the values
  std::string value_name;                                 ///< what the shade means
};

/// The darker (on a dark page: the brighter), the larger.
std::string heat_map_figure(const HeatMap& map);

struct Histogram {
  std::string title, text;
  double low = -2, high = 2;  ///< ends of the bins
  std::vector<std::int64_t> counts;
  std::vector<double> ticks;   ///< drawn below the bars: centroids
  std::vector<double> bounds;  ///< drawn through the bars: thresholds
};

/// Small: many stand side by side.
std::string histogram_figure(const Histogram& histogram);

}  // namespace kvq
