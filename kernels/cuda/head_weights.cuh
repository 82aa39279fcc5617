#pragma once
// From a page's scores to its share of the output. Included by head_warp.cuh.

namespace kvq::cuda {

/// Larger of two non-negative fp16 numbers each.
__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  return as_bits(__hmax2(as_half2(a), as_half2(b)));
}

template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::rescale(float highest, std::uint32_t largest_scale, std::uint32_t bound) {
  for (int step = 4; step < 32; step <<= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
  largest_scale = __reduce_max_sync(~0u, largest_scale);
  highest = fmaxf(highest, largest_);
  const float fade = exp2_fast(largest_ - highest);
  largest_ = highest;
  sum_ *= fade, zeros_ *= fade;
  const auto exponent_of = [](std::uint32_t bits) { return bits >= 0x400u ? static_cast<int>(bits >> 10) - 15 : -15; };
  float unit_fade = 1.0f, extra_fade = 1.0f;
  if (largest_scale > value_scale_bits_) {
    value_scale_bits_ = largest_scale;
    // The largest scale comes into [2^4, 2^5): weights up to 2^8 fit, and 2^-18 is still a normal number.
    const float unit = power_of_two(4 - exponent_of(largest_scale));
    unit_fade = unit * inverse_power(weight_unit_);
    weight_unit_ = unit;
  }
  if (params_.page.value.has_outliers()) {
    bound = __reduce_max_sync(~0u, bound);
    if (bound > extra_bits_) {
      extra_bits_ = bound;
      // Value minus zero and scale is within four times the largest of them: that comes below 2^7.
      const float unit = power_of_two(4 - exponent_of(bound));
      extra_fade = unit * inverse_power(extra_unit_);
      extra_unit_ = unit;
    }
  }
  const float fade0 = __shfl_sync(~0u, fade, 2 * t_ & 3), fade1 = __shfl_sync(~0u, fade, (2 * t_ & 3) + 1);
#pragma unroll
  for (int tile = 0; tile < kSteps; ++tile) {
    output_[tile][0] *= fade0 * unit_fade, output_[tile][2] *= fade0 * unit_fade;
    output_[tile][1] *= fade1 * unit_fade, output_[tile][3] *= fade1 * unit_fade;
  }
#pragma unroll
  for (int tile = 0; tile < kPairTiles; ++tile) {
    extra_[tile][0] *= fade0 * extra_fade, extra_[tile][2] *= fade0 * extra_fade;
    extra_[tile][1] *= fade1 * extra_fade, extra_[tile][3] *= fade1 * extra_fade;
  }
}

template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::weigh(int page, float (&scores)[2 * kSubTiles]) {
  constexpr int kTokens = 2 * kSubTiles;  // 8 g + i of this lane
  const int begin = params_.sinks - page * layout::kPageTokens, end = share_.length - page * layout::kPageTokens;
  if (begin > 0 || end < layout::kPageTokens) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (8 * g_ + i < begin || 8 * g_ + i >= end) scores[i] = -INFINITY;
    }
  }
  std::uint32_t range[kTokens];
  if constexpr (kOwn) {  // behind rows that end anywhere
    const auto* halves =
        reinterpret_cast<const std::uint16_t*>(memory_ + params_.plan.value_ranges + copies_.range_shift()) + 16 * g_;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) range[i] = halves[2 * i] | static_cast<std::uint32_t>(halves[2 * i + 1]) << 16;
  } else {
    const auto* value_ranges = reinterpret_cast<const uint4*>(memory_ + params_.plan.value_ranges) + 2 * g_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 four = value_ranges[half];
      range[4 * half] = four.x, range[4 * half + 1] = four.y;
      range[4 * half + 2] = four.z, range[4 * half + 3] = four.w;
    }
  }
  std::uint32_t largest = 0;  // zero and scale
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    largest = larger_halves(largest, range[i] & 0x7fff7fffu);
    highest = fmaxf(highest, scores[i]);
  }
  const bool outliers = params_.page.value.has_outliers();
  std::uint32_t bound = 0;
  if (outliers) bound = max(max(largest & 0xffffu, largest >> 16), largest_value_outlier());
  // A score above the reference by less than 2^8 leaves it as it is: rescaling is rare.
  if (__any_sync(~0u, highest > largest_ + 8.0f || largest >> 16 > value_scale_bits_ || bound > extra_bits_)) {
    rescale(highest, largest >> 16, bound);
  }

  float weight[kTokens];
  std::uint32_t scaled[kSubTiles];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    weight[i] = exp2_fast(scores[i] - largest_);
    sum_ += weight[i];
    zeros_ += weight[i] * low_float(range[i]);
  }
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    scaled[m] = pack_halves(weight[2 * m] * (high_float(range[2 * m]) * weight_unit_),
                            weight[2 * m + 1] * (high_float(range[2 * m + 1]) * weight_unit_));
  }
  char* own = memory_ + params_.plan.scratch;
  __syncwarp();
  *reinterpret_cast<uint4*>(own + t_ * kOwnWeightStride + g_ * 16) = {scaled[0], scaled[1], scaled[2], scaled[3]};
  if (outliers) {
    char* cells = memory_ + params_.plan.weights + weight_cell(8 * g_) + 2 * t_;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) *reinterpret_cast<__half*>(cells + 8 * i) = __float2half_rn(weight[i]);
  }
  // Column g of the weights' fragments is query g % 4; a lane needs 16 neighbouring tokens.
  __syncwarp();
  const auto* from = reinterpret_cast<const uint4*>(own + (g_ & 3) * kOwnWeightStride + t_ * 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = from[half];
    weights_[2 * half][0] = words.x, weights_[2 * half][1] = words.y;
    weights_[2 * half + 1][0] = words.z, weights_[2 * half + 1][1] = words.w;
  }
  __syncwarp();
}

template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::accumulate() {
  const char* row = memory_ + params_.plan.value_codes + (kOwn ? 0 : g_ * value_row());
  const std::uint32_t column = key_column_ + 128;
  struct Numbers {
    std::uint32_t upper[2 * kSubTiles], lower[2 * kSubTiles];  ///< [m][b]
  };
  const auto look_up = [&](int tile) {
    typename Lookup::Index upper, lower;
    Numbers numbers;
    if constexpr (kOwn) {
      const LevelRows& levels = params_.value_rows;
      const int shift = copies_.value_shift(), channel = 16 * tile + g_;
      if (levels.has_triples()) {
        Lookup::look_up_levels(row, shift, channel, t_, lane_, levels, numbers.upper);
        Lookup::look_up_levels(row, shift, channel + 8, t_, lane_, levels, numbers.lower);
        return numbers;
      }
      const auto index_of = [&](int of_channel) {
        return levels.levels > 0 ? Lookup::level_index(row, shift, of_channel, t_, levels)
                                 : Lookup::value_index(row, shift, of_channel, t_, value_bits());
      };
      upper = index_of(channel);
      lower = index_of(channel + 8);
    } else {
      const char* rows = row + 16 * tile * value_row();
      upper = Lookup::value_index(rows, t_, value_bits());
      lower = Lookup::value_index(rows + 8 * value_row(), t_, value_bits());
    }
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      Lookup::look_up(upper, m, column, numbers.upper[2 * m], numbers.upper[2 * m + 1]);
      Lookup::look_up(lower, m, column, numbers.lower[2 * m], numbers.lower[2 * m + 1]);
    }
    return numbers;
  };
  Numbers next;
  if constexpr (kPipelined) next = look_up(0);
#pragma unroll
  for (int tile = 0; tile < kSteps; ++tile) {
    const Numbers now = kPipelined ? next : look_up(tile);
    if (kPipelined && tile + 1 < kSteps) next = look_up(tile + 1);
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      multiply_add(output_[tile], now.upper[2 * m], now.lower[2 * m], now.upper[2 * m + 1], now.lower[2 * m + 1],
                   weights_[m][0], weights_[m][1]);
    }
  }
}

template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::run() {
  const auto* units = reinterpret_cast<const float2*>(shared_ + params_.plan.units);
  unit_ = units[t_].x, outlier_unit_ = units[t_].y;
  value_level_ = __ldg(params_.value_decoded + value_book());
  unsigned parity = 0;
#pragma unroll 1
  for (int page = share_.first_page + warp_; page < share_.end_page; page += params_.plan.warps) {
    float scores[2 * kSubTiles];
    copies_.wait(kKeysFull, parity);
    score(scores);
    copies_.wait(kListsFull, parity);
    if (params_.page.key.has_outliers()) add_key_outliers(page, scores);
    weigh(page, scores);
    if (params_.page.value.has_outliers()) add_value_outliers();
    __syncwarp();
    copies_.copy_lists();
    copies_.wait(kValuesFull, parity);
    accumulate();
    __syncwarp();
    copies_.copy_values();
    copies_.advance();
    parity ^= 1;
  }
  write_share();
}

}  // namespace kvq::cuda
