#pragma once
// Values of PageAppend: the largest and smallest of a token stay exact, the rest gives its range. Included by
// page_append.cuh.

namespace kvq::cuda {

/// Marks the outliers_per_end largest (or smallest) values of the token that are not taken yet. Every warp finds its
/// own, then every warp the best of all.
template <int kPerThread>
template <bool kLargest>
__device__ void PageAppend<kPerThread>::take(const float (&x)[kPerThread], unsigned& taken) {
  constexpr std::int32_t kNone = kLargest ? kLowest : kHighest;
  const int wanted = a_.page.value.outliers_per_end;
  unsigned tried = taken;
  for (int rank = 0; rank < wanted; ++rank) {
    Best own{kNone, kHighest};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const std::int32_t key = order_key(x[i]);
      if (mine(i) && !(tried >> i & 1u) && (kLargest ? key > own.key : key < own.key)) own = {key, first_channel_ + i};
    }
    const Best best = best_of_warp<kLargest>(own);
    if (lane_ == 0) candidates_[warp_ * wanted + rank] = best;
    const int i = best.channel - first_channel_;
    if (i >= 0 && i < kPerThread) tried |= 1u << i;
  }
  __syncthreads();
  // The candidates of a warp are in order: lanes of other warps' lists compete with their first ones.
  int next = 0;
  for (int rank = 0; rank < wanted; ++rank) {
    const Best own = lane_ < warps_ && next < wanted ? candidates_[lane_ * wanted + next] : Best{kNone, kHighest};
    const Best best = best_of_warp<kLargest>(own);
    if (own.channel == best.channel && own.channel != kHighest) ++next;
    const int i = best.channel - first_channel_;
    if (i >= 0 && i < kPerThread) taken |= 1u << i;
  }
  __syncthreads();
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::append_value(const float (&x)[kPerThread], std::int64_t row, int slot) {
  const layout::SideShape& shape = a_.page.value;
  const float to_stored = power_of_two(-a_.value_tables.exponent);
  const float from_stored = power_of_two(a_.value_tables.exponent);
  unsigned taken = 0;
  const bool all = shape.outliers_per_end > 0 && 2 * shape.outliers_per_end >= width_;
  if (all) {
    taken = ~0u;
  } else if (shape.outliers_per_end > 0) {
    take<true>(x, taken);
    take<false>(x, taken);
  }
  std::int32_t highest = kLowest, lowest = kHighest;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (mine(i) && !(taken >> i & 1u)) highest = max(highest, order_key(x[i])), lowest = min(lowest, order_key(x[i]));
  }
  highest = __reduce_max_sync(~0u, highest), lowest = __reduce_min_sync(~0u, lowest);
  __syncthreads();
  if (lane_ == 0) totals_[warp_] = highest;
  __syncthreads();
  highest = __reduce_max_sync(~0u, lane_ < warps_ ? totals_[lane_] : kLowest);
  __syncthreads();
  if (lane_ == 0) totals_[warp_] = lowest;
  __syncthreads();
  lowest = __reduce_min_sync(~0u, lane_ < warps_ ? totals_[lane_] : kHighest);

  std::uint16_t zero_half = 0, scale_half = 0;
  if (!all) {
    const float maximum = number_of_key(highest), minimum = number_of_key(lowest);
    zero_half = __half_as_ushort(
        __float2half_rn(__fmul_rn(__fadd_rn(__fmul_rn(0.5f, minimum), __fmul_rn(0.5f, maximum)), to_stored)));
    const float zero = __fmul_rn(half_bits_to_float(zero_half), from_stored);
    const float scale = fmaxf(__fsub_rn(maximum, zero), __fsub_rn(zero, minimum));
    scale_half = __half_as_ushort(__float2half_rn(__fmul_rn(scale, to_stored)));
    if (thread_ == 0 && ((zero_half & 0x7fffu) >= 0x7c00u || (scale_half & 0x7fffu) >= 0x7c00u))
      report_overflow(row, 1, 0xffff);
  }
  if (thread_ == 0) {
    reinterpret_cast<std::uint32_t*>(page_ + a_.page.value_parts.ranges)[slot] =
        zero_half | static_cast<std::uint32_t>(scale_half) << 16;
  }
  const float zero = __fmul_rn(half_bits_to_float(zero_half), from_stored);
  const float inverse = inverse_of(__fmul_rn(half_bits_to_float(scale_half), from_stored));
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (taken >> i & 1u) own |= 1u << i;
    const int code = taken >> i & 1u ? 0 : code_of(1, first_channel_ + i, __fmul_rn(__fsub_rn(x[i], zero), inverse));
    append_code(1, i, slot, code);
  }
  if (shape.outliers_per_end == 0) return;
  int total = 0;
  std::int64_t entry = sum_before(__popc(own), total) + static_cast<std::int64_t>(slot) * shape.entries_per_token();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!(own >> i & 1u)) continue;
    const int channel = first_channel_ + i;
    reinterpret_cast<std::uint16_t*>(page_ + a_.page.value_parts.outlier_values)[entry] =
        exact(x[i], to_stored, row, 1, channel);
    std::uint8_t* channels = page_ + a_.page.value_parts.outlier_channels;
    if (shape.channel_bytes() == 1) {
      channels[entry] = static_cast<std::uint8_t>(channel);
    } else {
      reinterpret_cast<std::uint16_t*>(channels)[entry] = static_cast<std::uint16_t>(channel);
    }
    ++entry;
  }
}

}  // namespace kvq::cuda
