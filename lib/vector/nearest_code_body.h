// No include guard: included once per instruction set, each time in a namespace of its own, by the loops of encoders
// that choose the nearest of a codebook's levels by comparison with the midpoints between them.

/// Few boundaries: comparing with all of them beats a search.
template <int kBoundaries>
inline void count_boundaries(const float* __restrict x_hat, int count, const float* __restrict boundaries,
                             std::uint8_t* __restrict codes) {
  for (int channel = 0; channel < count; ++channel) {
    int code = 0;
#pragma GCC unroll 16
    for (int boundary = 0; boundary < kBoundaries; ++boundary) code += boundaries[boundary] < x_hat[channel] ? 1 : 0;
    codes[channel] = static_cast<std::uint8_t>(code);
  }
}

/// Many: branch-free binary search over 2^bits - 1 boundaries, a gather per step.
template <int kBits>
inline void search_boundaries(const float* __restrict x_hat, int count, const float* __restrict boundaries,
                              std::uint8_t* __restrict codes) {
  for (int channel = 0; channel < count; ++channel) {
    int code = 0;
#pragma GCC unroll 8
    for (int bit = kBits - 1; bit >= 0; --bit) {
      code += (boundaries[code + (1 << bit) - 1] < x_hat[channel] ? 1 : 0) << bit;
    }
    codes[channel] = static_cast<std::uint8_t>(code);
  }
}

inline void assign_codes(const float* x_hat, int count, const float* boundaries, int bits, std::uint8_t* codes) {
  switch (bits) {
    case 1:
      return count_boundaries<1>(x_hat, count, boundaries, codes);
    case 2:
      return count_boundaries<3>(x_hat, count, boundaries, codes);
    case 3:
      return count_boundaries<7>(x_hat, count, boundaries, codes);
    case 4:
      return count_boundaries<15>(x_hat, count, boundaries, codes);
    case 5:
      return search_boundaries<5>(x_hat, count, boundaries, codes);
    case 6:
      return search_boundaries<6>(x_hat, count, boundaries, codes);
    case 7:
      return search_boundaries<7>(x_hat, count, boundaries, codes);
    default:
      return search_boundaries<8>(x_hat, count, boundaries, codes);
  }
}
