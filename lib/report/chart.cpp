#include <kvq/report/chart.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/report/axis.h>
#include <kvq/report/html.h>
#include <kvq/report/svg_text.h>

namespace kvq {

namespace {

constexpr double kWidth = 480, kHeight = 300;
constexpr double kLeft = 58, kRight = 14, kTop = 12, kBottom = 44;
constexpr double kAxisTitle = 22;  ///< what the y axis' title needs at the left edge

struct Frame {
  Axis x, y;
  double left = kLeft;  ///< where the y axis stands: right of its widest label
  double at_x(double value) const { return left + x.place(value) * (kWidth - left - kRight); }
  double at_y(double value) const { return kHeight - kBottom - y.place(value) * (kHeight - kTop - kBottom); }
};

bool drawn(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

Frame frame_of(const Chart& chart) {
  std::vector<double> x, y;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawn(point)) continue;
      x.push_back(point.x);
      y.push_back(point.y);
      // On a logarithmic axis the lower end of a bar that reaches zero cannot be shown; it ends at the frame.
      if (point.error && std::isfinite(*point.error)) {
        y.push_back(point.y + *point.error);
        if (!chart.log_y || point.y - *point.error > 0.3 * point.y) y.push_back(point.y - *point.error);
      }
    }
  }
  Frame frame{make_axis(x, chart.log_x), make_axis(y, chart.log_y)};
  for (const double tick : frame.y.ticks)
    frame.left = std::max(frame.left, kAxisTitle + svg_text_width(tick_label(tick), 12) + 6);
  return frame;
}

std::string axes(const Chart& chart, const Frame& frame) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  std::string svg;
  double last_end = -1e9;
  for (const double tick : frame.x.ticks) {
    const double x = frame.at_x(tick);
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", x, kTop, bottom);
    const std::string label = tick_label(tick);
    const double half = 0.5 * svg_text_width(label, 12);
    if (x - half < last_end + 4) continue;
    last_end = x + half;
    svg += svg_text(x, bottom + 16, "middle", "axis", label);
  }
  double last_y = 1e9;
  for (const double tick : frame.y.ticks) {
    const double y = frame.at_y(tick);
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", frame.left, y, right);
    if (y > last_y - 13) continue;
    last_y = y;
    svg += svg_text(frame.left - 6, y + 4, "end", "axis", tick_label(tick));
  }
  svg += fmt::format("<path class=\"frame\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>", frame.left, kTop, bottom, right);
  svg += svg_text((frame.left + right) / 2, kHeight - 8, "middle", "", chart.x_label);
  svg +=
      fmt::format("<text x=\"13\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 13 {0:.1f})\">{1}</text>",
                  (kTop + bottom) / 2, escape_html(chart.y_label));
  return svg;
}

/// Shapes differ with the colour: told apart in grey, too. Where colours begin again shapes are shifted.
std::string mark(int colour, double x, double y) {
  switch ((colour + colour / kSeriesColours) % 4) {
    case 0:
      return fmt::format("<circle class=\"point\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>", x, y);
    case 1:
      return fmt::format("<path class=\"point\" d=\"M{:.1f} {:.1f}h8v8h-8z\"/>", x - 4, y - 4);
    case 2:
      return fmt::format("<path class=\"point\" d=\"M{:.1f} {:.1f}l5.2 9h-10.4z\"/>", x, y - 6);
    default:
      return fmt::format("<path class=\"point\" d=\"M{:.1f} {:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z\"/>", x, y - 5.5);
  }
}

std::string hover(const ChartSeries& series, const ChartPoint& point) {
  std::string text = point.label.empty() ? series.name : point.label;
  text += fmt::format(": {:.5g}, {:.5g}", point.x, point.y);
  if (point.error) text += fmt::format(" ± {:.2g}", *point.error);
  return fmt::format("<title>{}</title>", escape_html(text));
}

std::string series_svg(const ChartSeries& series, const Frame& frame) {
  std::string svg = fmt::format("<g class=\"s{}\">", series.colour % kSeriesColours);
  if (series.line) {
    std::string path;
    for (const ChartPoint& point : series.points) {
      if (drawn(point))
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", frame.at_x(point.x), frame.at_y(point.y));
    }
    if (path.find('L') != std::string::npos)
      svg += fmt::format("<path class=\"curve{}\" d=\"{}\"/>", series.dashed ? " dashed" : "", path);
  }
  for (const ChartPoint& point : series.points) {
    if (!drawn(point)) continue;
    const double x = frame.at_x(point.x);
    if (point.error && std::isfinite(*point.error)) {
      const double low = point.y - *point.error;
      const double below = frame.y.log && low <= 0 ? frame.at_y(frame.y.low) : frame.at_y(low);
      svg += fmt::format("<path class=\"error\" d=\"M{0:.1f} {1:.1f}h6m-3 0V{2:.1f}m-3 0h6\"/>", x - 3,
                         frame.at_y(point.y + *point.error), below);
    }
    if (series.marks) svg += "<g>" + hover(series, point) + mark(series.colour, x, frame.at_y(point.y)) + "</g>";
  }
  return svg + "</g>\n";
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

/// Labels go beside their marks, where no other mark or label is; those without room are left to the legend.
std::string point_labels(const Chart& chart, const Frame& frame) {
  std::vector<Box> taken;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawn(point)) continue;
      const double x = frame.at_x(point.x), y = frame.at_y(point.y);
      taken.push_back({x - 5, y - 6, x + 5, y + 6});
    }
  }
  std::string svg;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawn(point) || point.label.empty()) continue;
      const double x = frame.at_x(point.x), y = frame.at_y(point.y), width = svg_text_width(point.label, 10.5);
      const std::pair<double, double> places[] = {{x + 8, y + 4},         {x - 8 - width, y + 4},
                                                  {x - width / 2, y - 9}, {x - width / 2, y + 18},
                                                  {x + 6, y - 7},         {x + 6, y + 15}};
      for (const auto& [left, base] : places) {
        const Box box{left, base - 10, left + width, base + 2};
        if (box.left < frame.left + 2 || box.right > kWidth - 1 || box.top < 1 || box.bottom > kHeight - kBottom)
          continue;
        if (std::any_of(taken.begin(), taken.end(), [&](const Box& other) { return box.meets(other); })) continue;
        taken.push_back(box);
        svg += svg_text(left, base, "start", "small halo", point.label);
        break;
      }
    }
  }
  return svg;
}

std::string legend(const Chart& chart) {
  std::string html = "<ul class=\"legend\">";
  for (const ChartSeries& series : chart.series) {
    html += fmt::format("<li class=\"s{}\"><svg viewBox=\"0 0 32 16\" aria-hidden=\"true\">",
                        series.colour % kSeriesColours);
    if (series.line) html += fmt::format("<path class=\"curve{}\" d=\"M1 8H31\"/>", series.dashed ? " dashed" : "");
    if (series.marks) html += mark(series.colour, 16, 8);
    html += fmt::format("</svg> {}</li>", escape_html(series.name));
  }
  return html + "</ul>";
}

}  // namespace

std::string chart_figure(const Chart& chart) {
  const Frame frame = frame_of(chart);
  std::string html = fmt::format("<figure><figcaption>{}</figcaption>", escape_html(chart.title));
  html += svg_open(kWidth, kHeight, chart.title + ". " + chart.text);
  html += axes(chart, frame) + "\n";
  for (const ChartSeries& series : chart.series) html += series_svg(series, frame);
  html += point_labels(chart, frame) + "</svg>\n";
  if (chart.series.size() > 1) html += legend(chart);
  return html + "</figure>\n";
}

std::string histogram_figure(const Histogram& histogram) {
  constexpr double kW = 160, kBars = 64, kH = 78;
  const auto at = [&](double value) {
    return 2 + (kW - 4) * (value - histogram.low) / (histogram.high - histogram.low);
  };
  const double largest = histogram.counts.empty()
                             ? 1.0
                             : static_cast<double>(std::max<std::int64_t>(
                                   1, *std::max_element(histogram.counts.begin(), histogram.counts.end())));
  // One outline of all bars, relative and in half units: pages with hundreds of these stay small.
  std::string path = fmt::format("M{:.1f} {:.0f}", at(histogram.low), kBars);
  const double step =
      (histogram.high - histogram.low) / std::max<double>(1.0, static_cast<double>(histogram.counts.size()));
  for (std::size_t bin = 0; bin < histogram.counts.size(); ++bin) {
    path += fmt::format("V{:.1f}H{:.1f}", kBars - (kBars - 3) * static_cast<double>(histogram.counts[bin]) / largest,
                        at(histogram.low + step * static_cast<double>(bin + 1)));
  }
  path += fmt::format("V{:.0f}z", kBars);
  std::string html = fmt::format("<figure><figcaption>{}</figcaption>", escape_html(histogram.title));
  html += svg_open(kW, kH, histogram.title + ". " + histogram.text);
  html += fmt::format("<path class=\"bars\" d=\"{}\"/>", path);
  std::string bounds, ticks;
  for (const double bound : histogram.bounds) bounds += fmt::format("M{:.1f} 1V{:.0f}", at(bound), kBars + 4);
  for (const double tick : histogram.ticks) {
    if (tick >= histogram.low && tick <= histogram.high) ticks += fmt::format("M{:.1f} {:.0f}v10", at(tick), kBars + 1);
  }
  if (!bounds.empty()) html += fmt::format("<path class=\"bound\" d=\"{}\"/>", bounds);
  if (!ticks.empty()) html += fmt::format("<path class=\"ticks\" d=\"{}\"/>", ticks);
  return html + "</svg></figure>\n";
}

}  // namespace kvq
