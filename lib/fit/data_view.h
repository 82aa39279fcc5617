#pragma once
// The calibration data of one side of one layer as a recipe sees it: gradients clipped, keys after RoPE, values
// rotated.

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include <kvq/core/kv_shape.h>
#include <kvq/fit/sample.h>
#include <kvq/quant/recipe.h>

namespace kvq {

struct DataView {
  bool post_rope = false;
  Rotation rotation = Rotation::None;
  double clip = 1.0;
  int sinks = 0;  ///< matters to deviations and quantiles only: 0 where there are none

  bool changes_data() const { return post_rope || rotation != Rotation::None || clip < 1.0; }
  auto operator<=>(const DataView&) const = default;
};

DataView view_of(const SideRecipe& recipe, int sinks);

struct ViewedData {
  std::vector<float> x, gradients;    ///< `[sequences * seqlen, width]`; gradients may be empty
  std::vector<float> rotation_scale;  ///< `[width]`, with Rotation::Hadamard
};

/// Changes copies of `x` and `gradients` in this order:
/// - clip: token t's gradients (all kv heads) times min(1, c / a_t), a_t = sqrt(Σ_j g_tj² var_j), c the `clip` quantile
///   of a over the counted tokens, var_j the variance of channel j over them. One in a hundred tokens can hold most of
///   the gradient energy and would rule H alone.
/// - RoPE.
/// - Hadamard: x R and g R^-ᵀ with R = diag(σ_d^-1/2 σ_h^-1/2) · Hadamard per kv head; σ_d² variance of the channel,
///   σ_h² their mean over the head. A constant channel takes σ_h; a head of constants 1.
ViewedData view_data(const DataView& view, const KvShape& shape, const RopeParams& rope, std::int64_t sequences,
                     std::int64_t seqlen, std::span<const float> x, std::span<const float> gradients, int threads);

/// Variance of each channel over the counted tokens, `[width]`.
std::vector<double> channel_variances(const TokenSample& sample);

}  // namespace kvq
