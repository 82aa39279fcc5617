#pragma once
// A channel's range as what encoding subtracts and divides by. In one place, because the order of these operations is
// part of the contract of lib/quant/encoder.h: every cache has to arrive at the same bits.

namespace kvq {

struct ChannelAffine {
  float zero, scale;
};

inline ChannelAffine channel_affine(float lower, float upper) {
  return {0.5f * lower + 0.5f * upper, 0.5f * upper - 0.5f * lower};
}

}  // namespace kvq
