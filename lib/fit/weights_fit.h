#pragma once
// kvq-fit --weights: all matrices of a model's blocks for any number of schemes, one matrix in memory at a time.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/artifacts/weights_file.h>
#include <kvq/core/log.h>

namespace kvq {

/// Gives the model's own matrix, `[rows, columns]`.
using ReadMatrix = std::function<void(int layer, BlockMatrix matrix, std::span<float> out)>;

struct WeightsReport {
  double error = 0;  ///< Σ (w - decoded)² / Σ w² over all matrices
  double bits_counted = 0;
};

/// One report per scheme; `writers` are theirs, and are left to be finished by the caller. Warns of rows without Fisher
/// information, which are fitted with equal weights. Throws what fit_weight_matrix() throws, with layer and matrix, and
/// what the reader throws.
std::vector<WeightsReport> fit_weights(const WeightFisherReader& fisher, const ReadMatrix& read,
                                       const std::vector<WeightScheme>& schemes,
                                       const std::vector<WeightsWriter*>& writers, RunContext& context);

}  // namespace kvq
