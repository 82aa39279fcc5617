#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/report/chart.h>
#include <kvq/report/html.h>
#include <kvq/report/svg_text.h>

namespace kvq {

namespace {

constexpr double kRowHeight = 26, kMapTop = 8;

struct Shade {
  double low = 0, high = 1;
  bool log = false;
  /// 0.06 to 0.72: the least is still a colour, and text stays readable on the most.
  double opacity(double value) const {
    double share =
        high > low ? (log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low)) : 1.0;
    if (std::isnan(share)) share = 0;
    return 0.06 + 0.66 * std::clamp(share, 0.0, 1.0);
  }
};

Shade shade_of(const HeatMap& map) {
  Shade shade{INFINITY, -INFINITY, map.log};
  for (const auto& row : map.cells) {
    for (const auto& cell : row) {
      if (!cell || !std::isfinite(*cell)) continue;
      shade.low = std::min(shade.low, *cell);
      shade.high = std::max(shade.high, *cell);
    }
  }
  if (map.low) shade.low = *map.low;
  if (map.high) shade.high = *map.high;
  if (shade.low > shade.high) shade.low = shade.high = 0;
  if (shade.low <= 0) shade.log = false;
  return shade;
}

std::string value_text(double value) { return fmt::format("{:.3g}", value); }

}  // namespace

std::string heat_map_figure(const HeatMap& map) {
  const Shade shade = shade_of(map);
  double label_width = 0;
  for (const std::string& row : map.rows) label_width = std::max(label_width, svg_text_width(row, 12));
  const double left = label_width + 14;
  double needed = 15;  // for what stands in the cells and below them
  for (const auto& row : map.labels) {
    for (const std::string& label : row) needed = std::max(needed, svg_text_width(label, 10.5) + 8);
  }
  const auto columns = static_cast<double>(map.columns.size());
  const double cell = std::max(needed, std::min(64.0, (480.0 - left) / std::max(1.0, columns)));
  const double right = left + cell * columns, bottom = kMapTop + kRowHeight * static_cast<double>(map.rows.size());
  const double width = std::max(480.0, right + 12), height = bottom + 70;

  std::string svg = svg_open(width, height, map.title + ". " + map.text);
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const double y = kMapTop + kRowHeight * static_cast<double>(row);
    svg += svg_text(left - 7, y + kRowHeight / 2 + 4, "end", "", map.rows[row]);
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      const double x = left + cell * static_cast<double>(column);
      const auto& value = map.cells[row][column];
      const std::string place =
          fmt::format("x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"", x, y, cell, kRowHeight);
      const std::string what = fmt::format("{}, {} {}: ", map.rows[row], map.column_name, map.columns[column]);
      if (value && std::isfinite(*value)) {
        svg += fmt::format("<rect class=\"cell heat\" {} fill-opacity=\"{:.2f}\"><title>{}</title></rect>", place,
                           shade.opacity(*value), escape_html(what + value_text(*value)));
      } else {
        svg += fmt::format("<rect class=\"cell missing\" {}><title>{}</title></rect>", place,
                           escape_html(what + "not measured"));
      }
      if (!map.labels.empty() && !map.labels[row][column].empty())
        svg += svg_text(x + cell / 2, y + kRowHeight / 2 + 4, "middle", "small", map.labels[row][column]);
    }
    svg += '\n';
  }
  double last_end = -1e9;
  for (std::size_t column = 0; column < map.columns.size(); ++column) {
    const double x = left + cell * (static_cast<double>(column) + 0.5),
                 half = 0.5 * svg_text_width(map.columns[column], 12);
    if (x - half < last_end + 5) continue;
    last_end = x + half;
    svg += svg_text(x, bottom + 16, "middle", "axis", map.columns[column]);
  }
  svg += svg_text((left + right) / 2, bottom + 33, "middle", "", map.column_name);
  if (shade.high > shade.low) {  // the key: what the shades mean
    const std::string low = value_text(shade.low), high = value_text(shade.high);
    double x = 6;
    svg += svg_text(x, height - 8, "start", "small", map.value_name);
    x += svg_text_width(map.value_name, 10.5) + 12;
    svg += svg_text(x, height - 8, "start", "small", low);
    x += svg_text_width(low, 10.5) + 5;
    for (int step = 0; step < 6; ++step, x += 16)
      svg += fmt::format(
          "<rect class=\"cell heat\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"16\" height=\"12\" fill-opacity=\"{:.2f}\"/>", x,
          height - 18, 0.06 + 0.66 * step / 5);
    svg += svg_text(x + 5, height - 8, "start", "small", high + (shade.log ? " (logarithmic)" : ""));
  }
  svg += "</svg>";
  const char* wide = width > 560 ? " class=\"scroll wide\"" : "";
  // Not wider than its letters are meant for: a map of few columns would fill the page.
  return fmt::format("<figure{} style=\"max-width:{:.0f}px\"><figcaption>{}</figcaption>{}</figure>\n", wide,
                     1.2 * width, escape_html(map.title), svg);
}

}  // namespace kvq
