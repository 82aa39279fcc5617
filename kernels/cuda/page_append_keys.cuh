#pragma once
// Keys of PageAppend: codes, and outliers into the page and its overflow blocks. Included by page_append.cuh.

namespace kvq::cuda {

/// Of overflow block `number` of the page, in the order of the chain. New ones are known, old ones are walked to.
template <int kPerThread>
__device__ std::uint8_t* PageAppend<kPerThread>::block_of(int number) const {
  const layout::OverflowBlock block = layout::overflow_block(a_.page.key);
  if (number >= old_blocks_) {
    return a_.key_overflow + a_.free_blocks[free_top_ - 1 - (number - old_blocks_)] * block.bytes;
  }
  std::uint32_t link = *reinterpret_cast<const std::uint32_t*>(page_ + a_.page.key_parts.overflow_link);
  for (int hop = 0; hop < number; ++hop) {
    link = *reinterpret_cast<const std::uint32_t*>(a_.key_overflow + link * block.bytes + block.link);
  }
  return a_.key_overflow + link * block.bytes;
}

/// Overflow blocks for entries before … after - 1, linked to the chain. All threads call it.
template <int kPerThread>
__device__ void PageAppend<kPerThread>::reserve(int before, int after) {
  const std::int64_t capacity = a_.page.key.outlier_capacity;
  const int had = static_cast<int>(layout::overflow_blocks(before, capacity));
  const int need = static_cast<int>(layout::overflow_blocks(after, capacity));
  if (need == had) return;
  const layout::OverflowBlock block = layout::overflow_block(a_.page.key);
  // What was taken for earlier tokens of this call is old now: its links are written.
  __syncthreads();
  if (thread_ == 0) totals_[kMaxWarps] = atomicSub(a_.free_count, need - had);
  __syncthreads();
  free_top_ = totals_[kMaxWarps];
  old_blocks_ = had;
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
    auto* link = had == 0 ? page_ + a_.page.key_parts.overflow_link : block_of(had - 1) + block.link;
    *reinterpret_cast<std::uint32_t*>(link) = number;
  }
  __syncthreads();
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::store_key_outlier(int entry, std::uint16_t value, int channel) {
  const int capacity = static_cast<int>(a_.page.key.outlier_capacity);
  std::uint8_t *values = page_ + a_.page.key_parts.outlier_values,
               *channels = page_ + a_.page.key_parts.outlier_channels;
  int at = entry;
  if (entry >= capacity) {
    const int number = (entry - capacity) / layout::kOutlierBlockEntries;
    if (number >= old_blocks_ + new_blocks_) return;
    values = block_of(number);
    channels = values + layout::overflow_block(a_.page.key).channels;
    at = (entry - capacity) % layout::kOutlierBlockEntries;
  }
  reinterpret_cast<std::uint16_t*>(values)[at] = value;
  if (a_.page.key.channel_bytes() == 1) {
    channels[at] = static_cast<std::uint8_t>(channel);
  } else {
    reinterpret_cast<std::uint16_t*>(channels)[at] = static_cast<std::uint16_t>(channel);
  }
}

/// Leaves `cap` marks: the largest excess, ties to the lower channel. Rare, so every mark is compared with all others.
template <int kPerThread>
__device__ void PageAppend<kPerThread>::keep_largest_excess(const float (&x)[kPerThread], unsigned& marks, int cap) {
  unsigned keep = 0;
  int better[kPerThread] = {};
  float own[kPerThread];
  for (int i = 0; i < kPerThread; ++i) {
    const int channel = first_channel_ + i;
    own[i] = -1.0f;
    if (!(marks >> i & 1u)) continue;
    const float lower = a_.key_tables.lower[channel], upper = a_.key_tables.upper[channel];
    const float scale = __fsub_rn(__fmul_rn(0.5f, upper), __fmul_rn(0.5f, lower)), inverse = inverse_of(scale);
    const float beyond = x[i] < lower ? __fsub_rn(lower, x[i]) : __fsub_rn(x[i], upper);
    own[i] = inverse > 0.0f ? __fmul_rn(beyond, inverse) : INFINITY;
  }
  auto* window = reinterpret_cast<float*>(totals_);  // [warps]: what the threads of one lane have to show
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kPerThread; ++i) {
      __syncthreads();
      if (lane_ == lane) window[warp_] = own[i];
      __syncthreads();
      for (int warp = 0; warp < warps_; ++warp) {
        const float other = window[warp];
        const int channel = (warp * 32 + lane) * kPerThread + i;
        for (int k = 0; k < kPerThread; ++k) {
          if (other > own[k] || (other == own[k] && channel < first_channel_ + k)) ++better[k];
        }
      }
    }
  }
  __syncthreads();
  for (int i = 0; i < kPerThread; ++i) {
    if ((marks >> i & 1u) && better[i] < cap) keep |= 1u << i;
  }
  marks = keep;
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::append_key(const float (&x)[kPerThread], std::int64_t row, int slot) {
  const bool varying = a_.page.key.varying_outliers;
  unsigned marks = 0;
  int codes[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    codes[i] = 0;
    if (!mine(i)) continue;
    const int channel = first_channel_ + i;
    codes[i] = code_of(0, channel, __fmul_rn(__fsub_rn(x[i], zero_[i]), inverse_[i]));
    if (varying && (x[i] < lower_[i] || x[i] > upper_[i])) marks |= 1u << i;
  }
  if (varying) {
    int total = 0;
    int before = sum_before(__popc(marks), total);
    const int cap = a_.key_tables.outlier_cap > 0 ? a_.key_tables.outlier_cap : width_;
    if (total > cap) {
      keep_largest_excess(x, marks, cap);
      before = sum_before(__popc(marks), total);
    }
    const int head_dim = a_.page.key.head_dim, groups = layout::outlier_groups(a_.page.key.kv_heads, head_dim);
    const int group_width = layout::outlier_group_heads(head_dim) * head_dim;
    for (int group = thread_; group < groups; group += static_cast<int>(blockDim.x)) group_counts_[group] = 0;
    reserve(outliers_, outliers_ + total);
    __syncthreads();
    const float to_stored = power_of_two(-a_.key_tables.exponent);
    int entry = outliers_ + before;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (!(marks >> i & 1u)) continue;
      const int channel = first_channel_ + i, group = channel / group_width;
      codes[i] = 0;
      store_key_outlier(entry++, exact(x[i], to_stored, row, 0, channel), channel - group * group_width);
      atomicAdd(&group_counts_[group], 1);
    }
    __syncthreads();
    for (int group = thread_; group < groups; group += static_cast<int>(blockDim.x)) {
      std::uint8_t* counts = page_ + a_.page.key_parts.outlier_counts;
      if (layout::outlier_count_bytes(head_dim) == 1) {
        counts[slot * groups + group] = static_cast<std::uint8_t>(group_counts_[group]);
      } else {
        reinterpret_cast<std::uint16_t*>(counts)[slot * groups + group] =
            static_cast<std::uint16_t>(group_counts_[group]);
      }
    }
    outliers_ += total;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (mine(i)) append_code(0, i, slot, codes[i]);
  }
}

}  // namespace kvq::cuda
