#pragma once
// Weight, mean and spread of a set of weighted numbers, in a form that can be merged without cancellation.

namespace kvq {

struct Moments {
  double weight = 0;
  double mean = 0;
  double spread = 0;  ///< sum of w (x - mean)²

  /// Spread of the union (Chan, Golub, LeVeque 1979). Sums of squares would cancel when one far outlier sets the scale.
  static double merged_spread(const Moments& a, const Moments& b) {
    const double weight = a.weight + b.weight;
    if (weight == 0) return 0;
    const double distance = b.mean - a.mean;
    return a.spread + b.spread + a.weight * (b.weight / weight) * distance * distance;
  }

  void merge(const Moments& other) {
    if (other.weight == 0) return;
    const double merged = merged_spread(*this, other);
    const double total = weight + other.weight;
    mean += (other.mean - mean) * (other.weight / total);
    weight = total;
    spread = merged;
  }

  /// Sum of w (x - centre)².
  double error_about(double centre) const { return spread + weight * (mean - centre) * (mean - centre); }
};

}  // namespace kvq
