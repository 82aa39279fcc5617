#pragma once
// A channel's range as what encoding subtracts and divides by. In one place, because the order of these operations is
// part of the contract of lib/quant/encoder.h: every cache has to arrive at the same bits.

#include <cmath>

namespace kvq {

struct ChannelAffine {
  float zero, scale;
};

inline ChannelAffine channel_affine(float lower, float upper) {
  return {0.5f * lower + 0.5f * upper, 0.5f * upper - 0.5f * lower};
}

/// What encoding multiplies by. 0 also where the scale is too small to be inverted: 0 times infinity would be NaN.
inline float inverse_of(float scale) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

}  // namespace kvq
