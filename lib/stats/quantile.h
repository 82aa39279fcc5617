#pragma once
// Percentiles as numpy computes them by default (method 'linear').

#include <span>

namespace kvq {

/// Value at probability `q` in [0, 1]; `values` is reordered. Not empty.
float quantile(std::span<float> values, double q);

/// Both ends at once: quantile(tail) and quantile(1 - tail).
struct QuantilePair {
  float lower, upper;
};
QuantilePair quantile_pair(std::span<float> values, double tail);

}  // namespace kvq
