#pragma once
// Fits one side of one layer for several recipes that share what can be shared. Internal to lib/fit.

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <kvq/artifacts/thresholds_file.h>
#include <kvq/core/kv_shape.h>
#include <kvq/core/side.h>
#include <kvq/fit/normalise.h>
#include <kvq/fit/qnorm.h>
#include <kvq/fit/sample.h>

namespace kvq {

class SideFitter {
 public:
  explicit SideFitter(int threads) : threads_(threads) {}

  /// The next data: all keys (pre- or post-RoPE) or values (as they are or rotated) of a layer. `gradients` may be
  /// empty when no recipe uses them. `exact_magnitude`: of what stays exact beside x, if larger. Spans stay valid until
  /// the next call.
  void begin(const KvShape& shape, const RopeParams& rope, std::int64_t sequences, std::int64_t seqlen,
             std::span<const float> x, std::span<const float> gradients, float exact_magnitude);
  /// After begin(), for recipes with metric=query or weights=query: key_metric or value_metric as the recipe sees it
  /// (rotated with the values), and what attention each token receives.
  void set_metric(Side side, std::span<const double> metric, std::span<const float> mass);

  struct Result {
    SideQuantizer quantizer;
    double error = 0;  ///< sum(w (x_hat - decoded)²) / sum(w); 0 where nothing has weight, NaN for formats of their own
    bool fell_back = false;  ///< weights were asked for and all zero
  };
  /// `thresholds` are those of the recipe's outlier fraction; null where the recipe needs none.
  Result fit(const SideRecipe& recipe, int sinks, const ChannelThresholds* thresholds);

 private:
  /// Recipes that agree in this have the same normalised values and weights.
  using Key = std::pair<SideRecipe, int>;  ///< without what does not matter here; sinks

  static Key key_of(SideRecipe recipe, FitWeights weights, int sinks);
  TokenSample sequence_sample(std::int64_t sequence) const;
  ChannelRange range_of(const TokenSample& sample, const SideRecipe& recipe) const;
  void set_ranges(SideQuantizer& quantizer, const ChannelThresholds* thresholds);
  double outlier_rate(const SideRecipe& recipe) const;
  const NormalisedData& normalised(const SideQuantizer& quantizer, FitWeights weights);
  const NormalisedData& weighted_data(const SideQuantizer& quantizer, int segment, bool& fell_back);
  Codebook fit_codebook(const SideQuantizer& quantizer, int segment, CodebookError& error, bool& fell_back);
  std::span<const double> blocks(RoundingMetric metric);
  void fit_turbo(SideQuantizer& quantizer);

  int threads_;
  KvShape shape_;
  TokenSample sample_;
  std::span<const float> gradients_;
  std::span<const double> metric_;
  std::vector<float> query_roots_;  ///< used like gradients by weights=query
  LargestMagnitudes largest_;
  float largest_root_ = 0;
  int exponent_ = 0;
  std::vector<ChannelRange> ranges_;  ///< one, or one per sequence
  struct Cached {
    NormalisedData data;
    std::optional<Key> key;
  };
  Cached weighted_, unweighted_;  ///< the first with the weights of its key
  int rotary_dim_ = 0;
  std::vector<double> blocks_;  ///< of `block_sinks_`
  int block_sinks_ = -1;
  std::vector<std::pair<SideRecipe, std::shared_ptr<const TurboTables>>> turbo_;  ///< the same for all layers
};

}  // namespace kvq
