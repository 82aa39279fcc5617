// No include guard: encode_loops.cpp includes this once per instruction set, each time in a namespace of its own.

#include <kvq/vector/nearest_code_body.h>  // assign_codes

inline void normalise_channels(const float* __restrict x, const float* __restrict zero, const float* __restrict inverse,
                               int count, float* __restrict x_hat) {
  for (int channel = 0; channel < count; ++channel) x_hat[channel] = (x[channel] - zero[channel]) * inverse[channel];
}

inline void normalise_token(const float* __restrict x, float zero, float inverse, int count, float* __restrict x_hat) {
  for (int channel = 0; channel < count; ++channel) x_hat[channel] = (x[channel] - zero) * inverse;
}

inline void decode_channels(const std::uint8_t* __restrict codes, int count, const float* __restrict decoded,
                            const float* __restrict zero, const float* __restrict scale, float* __restrict x) {
  for (int channel = 0; channel < count; ++channel) {
    x[channel] = zero[channel] + scale[channel] * decoded[codes[channel]];
  }
}

inline void decode_token(const std::uint8_t* __restrict codes, int count, const float* __restrict decoded, float zero,
                         float scale, float* __restrict x) {
  for (int channel = 0; channel < count; ++channel) x[channel] = zero + scale * decoded[codes[channel]];
}

inline int mark_outside(const float* __restrict x, const float* __restrict lower, const float* __restrict upper,
                        int count, std::uint8_t* __restrict mask) {
  int marked = 0;
  for (int channel = 0; channel < count; ++channel) {
    const int outside = (x[channel] < lower[channel] ? 1 : 0) | (x[channel] > upper[channel] ? 1 : 0);
    mask[channel] = static_cast<std::uint8_t>(outside);
    marked += outside;
  }
  return marked;
}

inline void order_keys(const float* __restrict x, int count, std::int32_t* __restrict keys,
                       std::int32_t* __restrict copy) {
  for (int channel = 0; channel < count; ++channel) {
    const auto bits = std::bit_cast<std::int32_t>(x[channel] + 0.0f);  // + 0: -0 becomes 0
    keys[channel] = copy[channel] = bits ^ ((bits >> 31) & 0x7fffffff);
  }
}

inline std::int32_t largest(const std::int32_t* __restrict keys, int count) {
  std::int32_t result = keys[0];
  for (int channel = 1; channel < count; ++channel) result = keys[channel] > result ? keys[channel] : result;
  return result;
}

inline std::int32_t smallest(const std::int32_t* __restrict keys, int count) {
  std::int32_t result = keys[0];
  for (int channel = 1; channel < count; ++channel) result = keys[channel] < result ? keys[channel] : result;
  return result;
}

inline int first_equal(const std::int32_t* __restrict keys, int count, std::int32_t key) {
  int result = count;
  for (int channel = 0; channel < count; ++channel) {
    const int candidate = keys[channel] == key ? channel : count;
    result = candidate < result ? candidate : result;
  }
  return result;
}

inline constexpr EncodeLoops kLoops = {normalise_channels, normalise_token, assign_codes, decode_channels, decode_token,
                                       mark_outside,       order_keys,      largest,      smallest,        first_equal};
