#pragma once
// Values of PageAppend: the largest and smallest of a token stay exact, the rest gives its range. Included by
// page_append.cuh.

namespace kvq::cuda {

/// The slow way, for any number and any ties: marks the outliers_per_end largest (or smallest) values of the token that
/// are not taken yet. Every warp finds its own, then every warp the best of all.
template <int kPerThread, bool kRounded>
template <bool kLargest>
__device__ void PageAppend<kPerThread, kRounded>::take_one_by_one(const float (&x)[kPerThread], unsigned& taken) {
  constexpr std::int32_t kNone = kLargest ? kLowest : kHighest;
  const int wanted = shape_.outliers_per_end;
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

/// Marks the outliers_per_end largest values of the token and as many of the smallest, ties to the lower channel. Every
/// warp shows its `rounds` largest; of what the warps show last, the number-th largest is exceeded by enough values,
/// and not by many more: these are ranked. False, and nothing marked, where that would not be so.
template <int kPerThread, bool kRounded>
__device__ bool PageAppend<kPerThread, kRounded>::take_extremes(const float (&x)[kPerThread], unsigned& taken) {
  const int wanted = shape_.outliers_per_end, rounds = (wanted + warps_ - 1) / warps_;
  if (rounds > 4) return false;
  const int number = (wanted + rounds - 1) / rounds;
  std::int32_t keys[kPerThread];
  std::int32_t largest = kLowest, smallest = kHighest;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    keys[i] = order_key(x[i]);
    if (mine(i)) largest = max(largest, keys[i]), smallest = min(smallest, keys[i]);
  }
  std::int32_t warp_largest = __reduce_max_sync(~0u, largest), warp_smallest = __reduce_min_sync(~0u, smallest);
  for (int round = 1; round < rounds; ++round) {  // equal values count once, which only lowers what is shown
    largest = kLowest, smallest = kHighest;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (mine(i) && keys[i] < warp_largest) largest = max(largest, keys[i]);
      if (mine(i) && keys[i] > warp_smallest) smallest = min(smallest, keys[i]);
    }
    warp_largest = __reduce_max_sync(~0u, largest), warp_smallest = __reduce_min_sync(~0u, smallest);
  }
  std::int32_t* shown = next_totals();
  if (lane_ == 0) shown[warp_] = warp_largest, shown[kMaxAppendWarps + 1 + warp_] = warp_smallest;
  if (thread_ < 2) totals_[(totals_turn_ * 3 + 2) * (kMaxAppendWarps + 1) + thread_] = 0;  // candidates so far
  __syncthreads();
  std::int32_t from_top = lane_ < warps_ ? shown[lane_] : kLowest;
  std::int32_t from_bottom = lane_ < warps_ ? shown[kMaxAppendWarps + 1 + lane_] : kHighest;
  for (int rank = 1; rank < number; ++rank) {
    const std::int32_t highest = __reduce_max_sync(~0u, from_top), lowest = __reduce_min_sync(~0u, from_bottom);
    if (lane_ == __ffs(__ballot_sync(~0u, from_top == highest)) - 1) from_top = kLowest;
    if (lane_ == __ffs(__ballot_sync(~0u, from_bottom == lowest)) - 1) from_bottom = kHighest;
  }
  const std::int32_t top = __reduce_max_sync(~0u, from_top), bottom = __reduce_min_sync(~0u, from_bottom);
  // All threads agree. No candidate for both ends; warps of padding alone show nothing.
  if (top <= bottom || top == kLowest || bottom == kHighest) return false;
  std::int32_t* found = shown + 2 * (kMaxAppendWarps + 1);
  Best* lists[2] = {candidates_, candidates_ + kMaxCandidates + 1};
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    const int list = keys[i] >= top ? 0 : keys[i] <= bottom ? 1 : 2;
    if (list == 2) continue;
    const int at = atomicAdd(&found[list], 1);
    if (at < kMaxCandidates) lists[list][at] = {keys[i], first_channel_ + i};
  }
  __syncthreads();
  if (max(found[0], found[1]) > kMaxCandidates) return false;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i) || (keys[i] < top && keys[i] > bottom)) continue;
    const bool largest_end = keys[i] >= top;
    const Best* list = lists[largest_end ? 0 : 1];
    const int count = found[largest_end ? 0 : 1], channel = first_channel_ + i;
    int better = 0;
    for (int other = 0; other < count; ++other) {
      const Best rival = list[other];
      const bool ahead = largest_end ? rival.key > keys[i] : rival.key < keys[i];
      better += ahead || (rival.key == keys[i] && rival.channel < channel) ? 1 : 0;
    }
    if (better < wanted) taken |= 1u << i;
  }
  return true;
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::append_value(const float (&x)[kPerThread], std::int64_t row,
                                                               int slot) {
  const float from_stored = power_of_two(tables_.exponent);
  unsigned taken = 0;
  const bool all = shape_.outliers_per_end > 0 && 2 * shape_.outliers_per_end >= width_;
  if (all) {
    taken = ~0u;
  } else if (shape_.outliers_per_end > 0 && !take_extremes(x, taken)) {
    __syncthreads();
    take_one_by_one<true>(x, taken);
    take_one_by_one<false>(x, taken);
  }
  unsigned own = 0;
  std::int32_t highest = kLowest, lowest = kHighest;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (taken >> i & 1u) {
      own |= 1u << i;
    } else {
      highest = max(highest, order_key(x[i])), lowest = min(lowest, order_key(x[i]));
    }
  }
  highest = __reduce_max_sync(~0u, highest), lowest = __reduce_min_sync(~0u, lowest);
  std::int32_t* totals = next_totals();
  int of_warp = 0, total = 0;
  const int before_in_warp = sum_before_in_warp(__popc(own), of_warp);
  if (lane_ == 0) {
    totals[warp_] = of_warp;
    totals[kMaxAppendWarps + 1 + warp_] = highest, totals[2 * (kMaxAppendWarps + 1) + warp_] = lowest;
  }
  __syncthreads();
  const int before = before_in_warp + sum_of_warps_before(totals, total);
  highest = __reduce_max_sync(~0u, lane_ < warps_ ? totals[kMaxAppendWarps + 1 + lane_] : kLowest);
  lowest = __reduce_min_sync(~0u, lane_ < warps_ ? totals[2 * (kMaxAppendWarps + 1) + lane_] : kHighest);

  HalfRange range{0, 0};
  if (!all) {
    range = half_range(number_of_key(lowest), number_of_key(highest), tables_.exponent);
    if (thread_ == 0 && ((range.zero & 0x7fffu) >= 0x7c00u || (range.scale & 0x7fffu) >= 0x7c00u))
      report_overflow(row, 0xffff);
  }
  if (thread_ == 0) {
    // Rows of levels may end anywhere.
    auto* ranges = reinterpret_cast<std::uint16_t*>(page_ + parts_.ranges);
    ranges[2 * slot] = range.zero, ranges[2 * slot + 1] = range.scale;
  }
  const float zero = __fmul_rn(half_bits_to_float(range.zero), from_stored);
  const float inverse = inverse_of(__fmul_rn(half_bits_to_float(range.scale), from_stored));
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (chosen()) {
      append_code(i, slot, rounded_.codes[row * width_ + first_channel_ + i]);
      continue;
    }
    append_code(i, slot, own >> i & 1u ? 0 : code_of(first_channel_ + i, __fmul_rn(__fsub_rn(x[i], zero), inverse)));
  }
  if (shape_.outliers_per_end > 0) gather(x, own, before, total, row, slot);
}

}  // namespace kvq::cuda
