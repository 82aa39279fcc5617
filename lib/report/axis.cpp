#include <kvq/report/axis.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvq {

namespace {

constexpr int kWantedTicks = 6;
constexpr double kLargest = 1e30;  ///< what lies beyond is no result, and its differences may overflow

/// 1, 2 or 5 times a power of ten, not below `value`.
double round_up(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= value * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

double round_down(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double digit : {5.0, 2.0}) {
    if (digit * power <= value * (1 + 1e-9)) return digit * power;
  }
  return power;
}

Axis log_axis(double low, double high) {
  Axis axis;
  axis.log = true;
  axis.low = round_down(low);
  axis.high = round_up(high);
  if (axis.high <= axis.low * 1.0001) axis.high = round_up(axis.low * 2);
  const double decades = std::log10(axis.high / axis.low);
  for (double power = std::pow(10.0, std::floor(std::log10(axis.low))); power <= axis.high * 1.0001; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit != 1.0 && decades > 3) continue;
      const double tick = digit * power;
      if (tick >= axis.low * 0.9999 && tick <= axis.high * 1.0001) axis.ticks.push_back(tick);
    }
  }
  return axis;
}

Axis linear_axis(double low, double high) {
  if (high - low <= 1e-12 * std::max(std::abs(low), std::abs(high))) {  // too close for numbers between them
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
  const double step = round_up((high - low) / kWantedTicks);
  Axis axis;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  axis.low = first * step;
  axis.high = last * step;
  for (int tick = 0; first + tick <= last; ++tick) axis.ticks.push_back((first + tick) * step);
  return axis;
}

}  // namespace

double Axis::place(double value) const {
  const double share = log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return std::isnan(share) ? 0.0 : std::clamp(share, 0.0, 1.0);
}

Axis make_axis(std::span<const double> values, bool log) {
  double low = INFINITY, high = -INFINITY;
  for (const double value : values) {
    if (!(std::abs(value) <= kLargest)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low > high) low = 0, high = 1;
  return log && low > 0 ? log_axis(low, high) : linear_axis(low, high);
}

std::string tick_label(double value) {
  if (std::abs(value) < 1e-12) return "0";
  const double magnitude = std::abs(value);
  return magnitude >= 1e6 || magnitude < 1e-4 ? fmt::format("{:.3g}", value) : fmt::format("{:.6g}", value);
}

}  // namespace kvq
