#pragma once
// The scale of a chart's axis: range, ticks and their labels.

#include <span>
#include <string>
#include <vector>

namespace kvq {

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;  ///< ascending, within the range
  /// Place of a value between the ends, 0 to 1; what lies outside is put at the end.
  double place(double value) const;
};

/// An axis over all finite `values` with ends on round numbers. A logarithmic one is made only where all values are
/// positive. No value, or equal ones: a range around them that is not empty.
Axis make_axis(std::span<const double> values, bool log);

/// "0.05", "2000", "1e-05": as short as it can be without losing digits of a tick.
std::string tick_label(double value);

}  // namespace kvq
