#pragma once
// kvq-fisher --weights: the squared gradients of every weight of the blocks, summed over the sequences of a sample.

#include <string>
#include <vector>

#include <kvq/calib/collect.h>

namespace kvq {

/// Like collect_calibration(): a journal `<output>.journal` (the sums so far) lets a killed run go on, and a resumed
/// run ends with the bytes of an uninterrupted one. Throws the same, and Numeric naming layer, matrix, row and column
/// of the first sum that is NaN or Inf.
CollectResult collect_weight_fisher(Model& model, const std::vector<Window>& windows,
                                    const std::vector<std::string>& domains, const CollectOptions& options,
                                    RunContext& context);

/// As plan_collection().
CollectPlan plan_weight_fisher(const ModelConfig& config, Dtype dtype, std::int64_t sequences, std::int64_t seqlen,
                               Recompute recompute, Device device = Device::Cpu);

}  // namespace kvq
