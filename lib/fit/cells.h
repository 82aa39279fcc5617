#pragma once
// Weighted numbers condensed into ascending cells: bins of a fine histogram with their exact moments, or single values.
// Bins can be resolved into their values later, so that work near a cluster boundary is exact and the rest stays cheap.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/fit/moments.h>

namespace kvq {

/// What the first look at the data finds.
struct WeightedRange {
  std::int64_t count = 0;  ///< values with weight > 0
  float minimum = 0, maximum = 0;
};

/// `weights` may be empty (all 1). Throws Numeric when a value or weight is not finite or a weight negative.
WeightedRange weighted_range(std::span<const float> values, std::span<const float> weights, int threads);

class CellTable {
 public:
  /// One cell per distinct value.
  static CellTable sorted(std::span<const float> values, std::span<const float> weights);
  /// One cell per non-empty bin of `bins` equal ones (at most 65 536) over the range, which must not be a single point.
  /// Sums run over fixed blocks of the data: the result does not depend on `threads`.
  static CellTable histogram(std::span<const float> values, std::span<const float> weights, const WeightedRange& range,
                             int bins, int threads);

  const std::vector<Moments>& cells() const { return cells_; }

  /// Replaces each bin that holds a boundary, and `margin` bins on either side, by the values in it. False when none
  /// was left to resolve.
  bool resolve(std::span<const double> boundaries, int margin, int threads);

 private:
  CellTable(std::span<const float> values, std::span<const float> weights) : values_(values), weights_(weights) {}
  /// Rounded monotonically: a value in a lower bin than `x` is smaller than `x`.
  int bin_of(double x) const;

  std::span<const float> values_, weights_;
  std::vector<Moments> cells_;
  std::vector<std::uint16_t> bin_of_value_;  ///< histogram only, as are the next two
  std::vector<int> bin_of_cell_;
  std::vector<std::uint8_t> resolved_;  ///< per bin
  double low_ = 0, bins_per_unit_ = 0;
};

}  // namespace kvq
