#pragma once
// One matrix of weights to codebooks, codes and exact weights (SqueezeLLM, arXiv 2306.07629): per output channel the
// optimal k-means of its weights, each weighted with the diagonal Fisher information F = Σ g² of the calibration.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/weight_matrix.h>
#include <kvq/quant/weight_scheme.h>

namespace kvq {

/// Which weights stay exact, as ascending flat indices: round(fraction · n) of n. The kSensitiveShare · n of them (or
/// all, if that is fewer) with the largest sensitivity, then those of the largest magnitude among the rest. Ties go to
/// the lower index.
std::vector<std::int64_t> exact_positions(std::span<const float> weights, std::span<const float> sensitivity,
                                          double fraction);

/// How well a matrix is fitted, for sums over matrices. F is in units of its row's largest.
struct WeightFitError {
  double squares = 0, weights = 0;   ///< Σ (w - decoded)² and Σ w² over all weights, exact ones included
  std::int64_t unweighted_rows = 0;  ///< rows whose Fisher information is 0 everywhere: fitted with equal weights
};

/// `weights` and `sensitivity` are `[rows, columns]`; `sensitivity` is sqrt(F), not negative. Exact weights take no
/// part in a row's k-means; the rest gets the code of the nearest stored centroid, the lower one of two. The result
/// does not depend on `threads`. Throws Numeric for NaN or Inf among the weights (row and column) and for weights
/// beyond what fp16 with the matrix's exponent holds; Usage for more than kMostWeightColumns columns.
WeightMatrix fit_weight_matrix(std::span<const float> weights, std::span<const float> sensitivity, int rows,
                               int columns, const WeightScheme& scheme, int threads, WeightFitError& error);

}  // namespace kvq
