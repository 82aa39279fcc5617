#pragma once
// What takes the gradients' place in a fit without them: key_metric and value_metric of a calibration file, as a recipe
// sees them (metric=query, weights=query).

#include <span>
#include <vector>

#include <kvq/core/kv_shape.h>
#include <kvq/core/side.h>

namespace kvq {

/// M' = R⁻¹ M R⁻ᵀ for values v' = v R: eᵀMe stays the same. `metric` `[kv_heads, head_dim, head_dim]`,
/// `rotation_scale` as ViewedData's.
std::vector<double> rotated_metric(std::span<const double> metric, std::span<const float> rotation_scale,
                                   const KvShape& shape);

/// Roots of what elements weigh, `[tokens, width]`, to be used like gradients, whose squares are weights too. Channel j
/// of a key weighs mass_t · M_jj, of a value mass_t² · M_jj, mass_t being the softmax weight that token t receives
/// (`mass`, `[tokens]`): keys' metric is a mean over tokens of squared softmax weights already, values' has none.
std::vector<float> query_weight_roots(Side side, std::span<const double> metric, std::span<const float> mass,
                                      const KvShape& shape, int threads);

}  // namespace kvq
