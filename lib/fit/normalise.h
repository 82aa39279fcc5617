#pragma once
// Calibration data as the codebook sees it: x_hat = (x - zero) / scale and the weight of each value.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/fit/sample.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Largest magnitudes of the data, which set the scale of the weights.
struct LargestMagnitudes {
  float x = 0, gradient = 0;
};

/// Values and weights that go into k-means, in segments: the whole layer, or one per kv head. Weight 0: the value takes
/// no part (sinks, outliers, constant channels). Only the ratios of weights mean something.
///
/// Recipes that are not streaming (recipe_traits.h) go through RangeFinder: what it calls exact takes no part, and
/// groups of tokens that the end of a sequence leaves unfinished do not either, since a cache keeps those exact.
class NormalisedData {
 public:
  /// `gradients` may be empty for FitWeights::None. `ranges`: per channel, one for all tokens or one per sequence
  /// (range=window); unused for the token axis. Buffers are reused from call to call.
  ///
  /// The weight is F·s² with F = g² (KVQuant, appendix E, eq. 7; FitWeights::Query gives query_weight_roots() as g), F
  /// alone, or 1; s is the half-width that x is divided
  /// by. Token axis: outliers, zero and half-width are those that the encoder itself finds and stores.
  void compute(const TokenSample& sample, std::span<const float> gradients, const SideQuantizer& quantizer,
               std::span<const ChannelRange> ranges, FitWeights weights, const LargestMagnitudes& largest, int threads);

  int segments() const { return static_cast<int>(weighted_.size()); }
  std::span<const float> values(int segment) const { return part(values_, segment); }
  std::span<const float> weights(int segment) const { return part(weights_, segment); }
  /// Whether any weight of the segment is above zero.
  bool weighted(int segment) const { return weighted_[segment] != 0; }

 private:
  /// `gradients` empty: all weights 1.
  void compute_found(const TokenSample& sample, std::span<const float> gradients, const SideQuantizer& quantizer,
                     std::span<const ChannelRange> ranges, float scale_unit, float gradient_unit, int threads);
  std::span<const float> part(const std::vector<float>& all, int segment) const {
    const std::size_t length = all.size() / weighted_.size();
    return std::span(all).subspan(segment * length, length);
  }

  std::vector<float> values_, weights_;  ///< `[segments, tokens, width / segments]`
  std::vector<std::uint8_t> weighted_;
};

}  // namespace kvq
