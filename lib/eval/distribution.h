#pragma once
// How the values that a quantizer meets lie between its levels: histograms on the normalised axis x̂ = (x − zero) /
// scale, where thresholds are ±1, and the share of exact values. What the model itself computes, before any
// quantization.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/core/side.h>
#include <kvq/model/model.h>

namespace kvq {

struct NamedQuantizer;

inline constexpr int kDistributionBins = 80;
inline constexpr double kDistributionReach = 2.0;  ///< bins cover ± this
inline constexpr std::int64_t kDistributionTokens = 512;

struct SideDistribution {
  std::vector<std::int64_t> counts;           ///< `[kDistributionBins]`
  std::int64_t below = 0, above = 0;          ///< beyond the bins
  std::vector<std::vector<float>> codebooks;  ///< centroids: one codebook, or one per kv head or width
  double outlier_rate = 0;                    ///< exact values per value here, sinks left out
  double calibrated_outlier_rate = 0;
};

/// Absent: an oracle, or ranges that are neither one per channel nor one per token.
struct LayerDistribution {
  std::array<std::optional<SideDistribution>, 2> sides;  ///< by Side
};

/// One unquantized pass over the first kDistributionTokens of `ids`. Result `[quantizers][layers]`; nothing for
/// rows of which only parts are quantized, and for those with other weights.
std::vector<std::vector<LayerDistribution>> observe_distributions(Model& model, const std::vector<std::int32_t>& ids,
                                                                  const std::vector<NamedQuantizer>& quantizers,
                                                                  RunContext& context);

}  // namespace kvq
