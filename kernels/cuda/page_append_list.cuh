#pragma once
// The lists of outliers of a page: what was gathered goes behind what each head has. Included by page_append.cuh.

namespace kvq::cuda {

/// Entries of a token's marked channels; there is room. `before`: marks of the threads before this one; `total`: of
/// all.
template <int kPerThread, bool kRounded>
__device__ __forceinline__ void PageAppend<kPerThread, kRounded>::gather(const float (&x)[kPerThread], unsigned marks,
                                                                         int before, int total, std::int64_t row,
                                                                         int slot) {
  const float to_stored = power_of_two(-tables_.exponent);
  int entry = staged_ + before;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!(marks >> i & 1u)) continue;
    if (chosen()) {
      const std::uint16_t half = rounded_.exact[row * width_ + first_channel_ + i];
      if ((half & 0x7fffu) >= 0x7c00u) report_overflow(row, first_channel_ + i);
      stage_values_[entry] = half;
    } else {
      stage_values_[entry] = exact(x[i], to_stored, row, first_channel_ + i);
    }
    stage_channels_[entry] = static_cast<std::uint16_t>(first_channel_ + i);
    stage_tokens_[entry] = static_cast<std::uint8_t>(slot);
    ++entry;
  }
  staged_ += total;
}

/// Numbers of gathered entries by head, where each head's begin among them and among the old ones, and their order.
template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::sort_gathered() {
  const int heads = shape_.kv_heads;
  const auto each_of_head = [&](int head, const auto& visit) {
    int found = 0;
    for (int begin = 0; begin < staged_; begin += 32) {
      const int entry = begin + lane_;
      const bool own = entry < staged_ && stage_channels_[entry] / shape_.head_dim == head;
      const unsigned marks = __ballot_sync(~0u, own);
      if (own) visit(entry, found + __popc(marks & ((1u << lane_) - 1u)));
      found += __popc(marks);
    }
    return found;
  };
  __syncthreads();
  for (int head = warp_; head < heads; head += warps_) {
    const int found = each_of_head(head, [](int, int) {});
    if (lane_ == 0) new_count_[head] = found;
  }
  __syncthreads();
  if (warp_ == 0) {
    int of_old = 0, of_new = 0;
    for (int begin = 0; begin <= heads; begin += 32) {
      const int head = begin + lane_, old_own = head < heads ? old_count_[head] : 0,
                new_own = head < heads ? new_count_[head] : 0;
      int old_sum = old_own, new_sum = new_own;
      for (int step = 1; step < 32; step <<= 1) {
        const int old_other = __shfl_up_sync(~0u, old_sum, step), new_other = __shfl_up_sync(~0u, new_sum, step);
        if (lane_ >= step) old_sum += old_other, new_sum += new_other;
      }
      if (head <= heads) {
        old_begin_[head] = of_old + old_sum - old_own;
        new_begin_[head] = of_new + new_sum - new_own;
      }
      of_old += __shfl_sync(~0u, old_sum, 31), of_new += __shfl_sync(~0u, new_sum, 31);
    }
  }
  __syncthreads();
  for (int head = warp_; head < heads; head += warps_) {
    each_of_head(
        head, [&](int entry, int rank) { stage_order_[new_begin_[head] + rank] = static_cast<std::uint16_t>(entry); });
  }
  __syncthreads();
}

/// Of overflow block `number` of the page, in the order of the chain. New ones are known, old ones are walked to.
template <int kPerThread, bool kRounded>
__device__ std::uint8_t* PageAppend<kPerThread, kRounded>::block_of(int number) const {
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  if (number >= old_blocks_) {
    return a_.key_overflow + a_.free_blocks[free_top_ - 1 - (number - old_blocks_)] * block.bytes;
  }
  std::uint32_t link = *reinterpret_cast<const std::uint32_t*>(page_ + parts_.overflow_link);
  for (int hop = 0; hop < number; ++hop) {
    link = *reinterpret_cast<const std::uint32_t*>(a_.key_overflow + link * block.bytes + block.link);
  }
  return a_.key_overflow + link * block.bytes;
}

/// Overflow blocks for entries before … after - 1, linked to the chain. All threads call it.
template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::reserve(int before, int after) {
  const std::int64_t capacity = shape_.outlier_capacity;
  const int had = static_cast<int>(layout::overflow_blocks(before, capacity));
  const int need = static_cast<int>(layout::overflow_blocks(after, capacity));
  old_blocks_ = had, new_blocks_ = 0;
  if (need == had) return;
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  std::int32_t* top = next_totals();
  if (thread_ == 0) *top = atomicSub(a_.free_count, need - had);
  __syncthreads();
  free_top_ = *top;
  new_blocks_ = need - had;
  if (free_top_ < new_blocks_) {
    // There are too few: entries that have no place are dropped, and the caller is told.
    if (thread_ == 0) atomicMin(&a_.report->blocks_missing, static_cast<unsigned long long>(new_blocks_ - free_top_));
    new_blocks_ = max(free_top_, 0);
  }
  for (int i = thread_; i < new_blocks_; i += static_cast<int>(blockDim.x)) {
    std::uint8_t* to = block_of(had + i);
    for (int byte = 0; byte < block.bytes; byte += 4) *reinterpret_cast<std::uint32_t*>(to + byte) = 0;
    *reinterpret_cast<std::uint32_t*>(to + block.link) =
        i + 1 < new_blocks_ ? a_.free_blocks[free_top_ - 2 - i] : layout::kNoBlock;
  }
  if (thread_ == 0 && new_blocks_ > 0) {
    const std::uint32_t number = a_.free_blocks[free_top_ - 1];
    auto* link = had == 0 ? page_ + parts_.overflow_link : block_of(had - 1) + block.link;
    *reinterpret_cast<std::uint32_t*>(link) = number;
  }
  __syncthreads();
}

/// Rewrites the lists from the first head's end on, from the back, as all that moves moves backwards: threads read what
/// belongs to their places before any of these is written.
template <int kPerThread, bool kRounded>
__device__ __forceinline__ void PageAppend<kPerThread, kRounded>::put_into_lists() {
  constexpr int kGroup = layout::kOutlierBlockEntries, kPlaces = 4;  // places of a thread
  if (staged_ == 0) return;
  sort_gathered();
  const int heads = shape_.kv_heads, head_dim = shape_.head_dim, threads = static_cast<int>(blockDim.x);
  const int old_total = old_begin_[heads], total = old_total + new_begin_[heads];
  const auto room = static_cast<int>(shape_.page_entries());
  if (shape_.varying_outliers) reserve(old_total, total);
  const layout::OverflowBlock block = layout::overflow_block(shape_);
  /// Of the eight entries from a multiple of eight on.
  struct Place {
    std::uint8_t *values, *channels, *tokens;
  };
  const auto place_of = [&](int first) -> Place {
    if (first < room) {
      return {page_ + parts_.outlier_values + first * layout::kHalfBytes, page_ + parts_.outlier_channels + first,
              page_ + parts_.outlier_tokens + layout::outlier_token_bytes(first)};
    }
    std::uint8_t* data = block_of((first - room) / kGroup);
    return {data, data + block.channels, data + block.tokens};
  };
  /// Entries that have a place.
  const int old_end = min(old_total, room + old_blocks_ * kGroup);
  const int new_end = min(total, room + (old_blocks_ + new_blocks_) * kGroup);
  const int first_place = old_begin_[1] & ~(kGroup - 1);
  for (int top = (total + 31) & ~31; top > first_place; top -= kPlaces * threads) {
    const int bottom = max(top - kPlaces * threads, first_place);
    std::uint32_t values[kPlaces], channels[kPlaces], low[kPlaces], high[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int at = bottom + i * threads + thread_;
      values[i] = channels[i] = low[i] = high[i] = 0;
      if (at >= top || at >= total) continue;
      int head = 0;
      while (at >= old_begin_[head + 1] + new_begin_[head + 1]) ++head;
      const int rank = at - old_begin_[head] - new_begin_[head], old_own = old_count_[head];
      if (rank < old_own) {
        const int from = old_begin_[head] + rank, in_group = from % kGroup;
        if (from >= old_end) continue;
        const Place place = place_of(from - in_group);
        const std::uint8_t* bytes = place.tokens + (layout::kOutlierTokenBits * in_group >> 3);
        values[i] = reinterpret_cast<const std::uint16_t*>(place.values)[in_group];
        channels[i] = place.channels[in_group];
        low[i] = bytes[0];
        if ((layout::kOutlierTokenBits * in_group & 7) > 2) high[i] = bytes[1];
        high[i] |= static_cast<std::uint32_t>(layout::kOutlierTokenBits * in_group & 7) << 16;  // where it begins
      } else {
        const int from = stage_order_[new_begin_[head] + rank - old_own];
        values[i] = stage_values_[from];
        channels[i] = stage_channels_[from] - static_cast<unsigned>(head * head_dim);
        low[i] = stage_tokens_[from];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int at = bottom + i * threads + thread_, in_group = at % kGroup;
      // Four tokens are three bytes; lanes of four belong together, as all begins at multiples of eight.
      std::uint32_t four = ((low[i] | (high[i] & 0xffu) << 8) >> (high[i] >> 16) & 63u)
                           << (layout::kOutlierTokenBits * (at & 3));
      four |= __shfl_xor_sync(~0u, four, 1);
      four |= __shfl_xor_sync(~0u, four, 2);
      if (at >= top || at - (at & 3) >= new_end) continue;
      const Place place = place_of(at - in_group);
      if (at < new_end) {
        reinterpret_cast<std::uint16_t*>(place.values)[in_group] = static_cast<std::uint16_t>(values[i]);
        place.channels[in_group] = static_cast<std::uint8_t>(channels[i]);
      }
      if ((at & 3) < 3) place.tokens[in_group / 4 * 3 + (at & 3)] = static_cast<std::uint8_t>(four >> (8 * (at & 3)));
    }
    __syncthreads();
  }
  auto* counts = reinterpret_cast<std::uint16_t*>(page_ + parts_.outlier_counts);
  for (int head = thread_; head < heads; head += threads) {
    old_count_[head] += new_count_[head];
    counts[head] = static_cast<std::uint16_t>(old_count_[head]);
  }
  staged_ = 0;
  __syncthreads();
}

}  // namespace kvq::cuda
