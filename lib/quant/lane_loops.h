#pragma once
// The inner loops of rounding with feedback: kLanes tokens side by side, so that the steps from channel to channel,
// which depend on each other, still fill vectors. Compiled for several instruction sets as encode_loops.h is; every
// level gives the same bits.

#include <cstddef>
#include <cstdint>

#include <kvq/quant/encode_loops.h>

namespace kvq {

inline constexpr int kLanes = 16;
inline constexpr int kLaneBlock = 8;  ///< channels whose errors are passed on together

/// All pointers to lanes are to kLanes numbers and do not overlap.
struct LaneLoops {
  /// x_hat = (x - zero) * inverse, code = number of boundaries < x_hat, restored = zero + scale * decoded[code].
  void (*round)(const float* x, const float* zero, const float* inverse, const float* scale, const float* boundaries,
                int boundary_count, const float* decoded, std::int32_t* codes, float* restored);
  /// target[k] -= weight[row * stride + k] * errors[row], for row = 0 … rows - 1 in this order and k < count. `errors`
  /// is `[rows, kLanes]`, `target` `[count, kLanes]`; rows <= kLaneBlock.
  void (*subtract)(const float* weights, std::ptrdiff_t stride, const float* errors, int rows, int count,
                   float* target);
};

const LaneLoops& lane_loops(SimdLevel level);

}  // namespace kvq
