#pragma once
// Appends new tokens to one page. A block takes them one after the other, so that everything that has an order
// (outliers by token, group and channel) gets it for free. Threads own neighbouring channels of keys and of values and
// collect their codes in a word each, which is written when it is full or at the end.
#include <kvq/kernels/cuda/quantize_append.h>

#include <algorithm>
#include <cmath>

#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxBoundaries = 255;
constexpr std::int32_t kLowest = static_cast<std::int32_t>(0x80000000u), kHighest = 0x7fffffff;  // keys of no number

__device__ __forceinline__ float inverse_of(float scale) {
  const float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
  return isfinite(inverse) ? inverse : 0.0f;
}

/// Integers in the order of floats; -0 is 0.
__device__ __forceinline__ std::int32_t order_key(float x) {
  const std::int32_t bits = __float_as_int(__fadd_rn(x, 0.0f));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float number_of_key(std::int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

/// `exponent` within ±126.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

struct Best {
  std::int32_t key;
  int channel;
};

/// Larger key first (or smaller, for kLargest = false), then the lower channel.
template <bool kLargest>
__device__ __forceinline__ Best best_of_warp(Best own) {
  const std::int32_t key = kLargest ? __reduce_max_sync(~0u, own.key) : __reduce_min_sync(~0u, own.key);
  return {key, __reduce_min_sync(~0u, own.key == key ? own.channel : kHighest)};
}

template <int kPerThread>
class PageAppend {
 public:
  __device__ PageAppend(const QuantizeAppend& arguments, char* shared)
      : a_(arguments),
        width_(a_.page.key.width()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ & 31),
        warp_(thread_ >> 5),
        warps_(static_cast<int>(blockDim.x) >> 5),
        first_channel_(thread_ * kPerThread) {
    auto* words = reinterpret_cast<std::int32_t*>(shared);
    totals_ = words;                          // [kMaxWarps + 1]
    group_counts_ = totals_ + kMaxWarps + 1;  // [groups]
    candidates_ = reinterpret_cast<Best*>(
        group_counts_ + ((layout::outlier_groups(a_.page.key.kv_heads, a_.page.key.head_dim) + 2) & ~1) + 1);
    boundaries_[0] = reinterpret_cast<float*>(candidates_ + kMaxWarps * a_.page.value.outliers_per_end);
    boundaries_[1] = boundaries_[0] + a_.key_tables.books * kMaxBoundaries;
  }

  __device__ void run(int sequence, int page_of_call);

 private:
  __device__ bool mine(int i) const { return first_channel_ + i < width_; }
  __device__ void load(const void* numbers, std::int64_t row, float (&x)[kPerThread]) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = mine(i) ? load_number(numbers, row * width_ + first_channel_ + i, static_cast<int>(a_.type)) : 0.0f;
    }
  }
  __device__ int code_of(int side, int channel, float x_hat) const {
    const int bits = side ? a_.page.value.bits : a_.page.key.bits,
              books = side ? a_.value_tables.books : a_.key_tables.books;
    const float* boundaries = boundaries_[side] + (books > 1 ? channel / a_.page.key.head_dim * kMaxBoundaries : 0);
    int code = 0;
    for (int step = 1 << (bits - 1); step > 0; step >>= 1) {
      if (boundaries[code + step - 1] < x_hat) code += step;
    }
    return code;
  }
  __device__ void report_overflow(std::int64_t token, int side, int channel) const {
    atomicMin(&a_.report->overflow, static_cast<unsigned long long>(token) << 17 | static_cast<unsigned>(side) << 16 |
                                        static_cast<unsigned>(channel));
  }
  __device__ std::uint16_t exact(float x, float to_stored, std::int64_t token, int side, int channel) const {
    const std::uint16_t half = __half_as_ushort(__float2half_rn(__fmul_rn(x, to_stored)));
    if ((half & 0x7fffu) >= 0x7c00u) report_overflow(token, side, channel);
    return half;
  }

  /// Exclusive sum over the threads of the block; the total in `total`.
  __device__ int sum_before(int own, int& total);
  __device__ void append_code(int side, int i, int slot, int code);
  __device__ void flush(int side, int end_slot);
  __device__ void append_key(const float (&x)[kPerThread], std::int64_t row, int slot);
  __device__ void append_value(const float (&x)[kPerThread], std::int64_t row, int slot);
  __device__ void store_sink(int sequence, std::int64_t row, int position);
  __device__ void keep_largest_excess(const float (&x)[kPerThread], unsigned& marks, int cap);
  template <bool kLargest>
  __device__ void take(const float (&x)[kPerThread], unsigned& taken);
  __device__ void store_key_outlier(int entry, std::uint16_t value, int channel);
  __device__ void reserve(int before, int after);
  __device__ std::uint8_t* block_of(int number) const;

  const QuantizeAppend& a_;
  int width_, thread_, lane_, warp_, warps_, first_channel_;
  std::int32_t *totals_, *group_counts_;
  Best* candidates_;
  float* boundaries_[2];
  std::uint8_t* page_ = nullptr;
  std::uint32_t pending_[2][kPerThread] = {};  ///< bits of the word that is being filled
  float lower_[kPerThread], upper_[kPerThread], zero_[kPerThread], inverse_[kPerThread];  ///< of keys
  int outliers_ = 0;    ///< keys' outliers in the page so far
  int old_blocks_ = 0;  ///< overflow blocks that were there before this call
  int free_top_ = 0;    ///< place in the list of free blocks of this page's first new one, plus 1
  int new_blocks_ = 0;
};

template <int kPerThread>
__device__ int PageAppend<kPerThread>::sum_before(int own, int& total) {
  int sum = own;
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane_ >= step) sum += other;
  }
  __syncthreads();
  if (lane_ == 31) totals_[warp_] = sum;
  __syncthreads();
  int before = sum - own;
  total = 0;
  for (int other = 0; other < warps_; ++other) {
    const int of_warp = totals_[other];
    if (other < warp_) before += of_warp;
    total += of_warp;
  }
  return before;
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::append_code(int side, int i, int slot, int code) {
  const int bits = side ? a_.page.value.bits : a_.page.key.bits;
  const int bit = slot * bits, in_word = bit & 31;
  pending_[side][i] |= static_cast<std::uint32_t>(code) << in_word;
  if (in_word + bits < 32) return;
  const std::int64_t codes = side ? a_.page.value_parts.codes : a_.page.key_parts.codes;
  auto* words = reinterpret_cast<std::uint32_t*>(page_ + codes + (first_channel_ + i) * (8 * bits));
  words[bit >> 5] = pending_[side][i];
  pending_[side][i] = in_word + bits > 32 ? static_cast<std::uint32_t>(code) >> (32 - in_word) : 0;
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::flush(int side, int end_slot) {
  const int bits = side ? a_.page.value.bits : a_.page.key.bits, bit = end_slot * bits;
  if ((bit & 31) == 0) return;
  const std::int64_t codes = side ? a_.page.value_parts.codes : a_.page.key_parts.codes;
  for (int i = 0; i < kPerThread; ++i) {
    if (mine(i)) {
      reinterpret_cast<std::uint32_t*>(page_ + codes + (first_channel_ + i) * (8 * bits))[bit >> 5] = pending_[side][i];
    }
  }
}

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
  // The excess of every marked channel goes to where the candidates of values lie later, a window of threads at a time.
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
  auto* window = reinterpret_cast<float*>(totals_);  // [warps]: one value a thread of one lane of every warp
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

template <int kPerThread>
__device__ void PageAppend<kPerThread>::store_sink(int sequence, std::int64_t row, int position) {
  float key[kPerThread], value[kPerThread];
  load(a_.key, row, key);
  load(a_.value, row, value);
  const std::int64_t base = (static_cast<std::int64_t>(sequence) * a_.sinks + position) * width_ + first_channel_;
  const float key_unit = power_of_two(-a_.key_tables.exponent);
  const float value_unit = power_of_two(-a_.value_tables.exponent);
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    a_.sink_keys[base + i] = exact(key[i], key_unit, row, 0, first_channel_ + i);
    a_.sink_values[base + i] = exact(value[i], value_unit, row, 1, first_channel_ + i);
  }
}

template <int kPerThread>
__device__ void PageAppend<kPerThread>::run(int sequence, int page_of_call) {
  const int length = a_.lengths[sequence], first = a_.first[sequence], count = a_.first[sequence + 1] - first;
  const int page = length / layout::kPageTokens + page_of_call;
  const int begin = max(length, page * layout::kPageTokens),
            end = min(length + count, (page + 1) * layout::kPageTokens);
  if (begin >= end) return;
  page_ = a_.pages + a_.block_table[sequence * a_.block_table_stride + page] * a_.page.bytes;
  const int first_slot = begin - page * layout::kPageTokens, end_slot = end - page * layout::kPageTokens;
  const int threads = static_cast<int>(blockDim.x);

  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    lower_[i] = __ldg(a_.key_tables.lower + first_channel_ + i);
    upper_[i] = __ldg(a_.key_tables.upper + first_channel_ + i);
    zero_[i] = __fadd_rn(__fmul_rn(0.5f, lower_[i]), __fmul_rn(0.5f, upper_[i]));
    inverse_[i] = inverse_of(__fsub_rn(__fmul_rn(0.5f, upper_[i]), __fmul_rn(0.5f, lower_[i])));
  }
  for (int side = 0; side < 2; ++side) {
    const EncodeTables& tables = side ? a_.value_tables : a_.key_tables;
    const int inner = (1 << (side ? a_.page.value.bits : a_.page.key.bits)) - 1;
    for (int i = thread_; i < tables.books * inner; i += threads) {
      boundaries_[side][i / inner * kMaxBoundaries + i % inner] = tables.boundaries[i];
    }
  }
  if (first_slot == 0) {
    for (std::int64_t at = thread_ * 16; at < a_.page.bytes; at += threads * 16)
      *reinterpret_cast<uint4*>(page_ + at) = {};
    __syncthreads();
    if (thread_ == 0 && a_.page.key.varying_outliers) {
      *reinterpret_cast<std::uint32_t*>(page_ + a_.page.key_parts.overflow_link) = layout::kNoBlock;
    }
  } else {
    for (int side = 0; side < 2; ++side) {
      const int bits = side ? a_.page.value.bits : a_.page.key.bits, bit = first_slot * bits;
      const std::int64_t codes = side ? a_.page.value_parts.codes : a_.page.key_parts.codes;
      for (int i = 0; i < kPerThread && (bit & 31); ++i) {
        if (!mine(i)) continue;
        pending_[side][i] =
            reinterpret_cast<const std::uint32_t*>(page_ + codes + (first_channel_ + i) * (8 * bits))[bit >> 5] &
            ((1u << (bit & 31)) - 1u);
      }
    }
    if (a_.page.key.varying_outliers) {
      const int head_dim = a_.page.key.head_dim;
      const int counts = first_slot * layout::outlier_groups(a_.page.key.kv_heads, head_dim);
      const std::uint8_t* from = page_ + a_.page.key_parts.outlier_counts;
      int own = 0;
      for (int i = thread_; i < counts; i += threads) {
        own += layout::outlier_count_bytes(head_dim) == 1 ? from[i] : reinterpret_cast<const std::uint16_t*>(from)[i];
      }
      sum_before(own, outliers_);
      old_blocks_ = static_cast<int>(layout::overflow_blocks(outliers_, a_.page.key.outlier_capacity));
    }
  }
  __syncthreads();
  for (int position = begin; position < end; ++position) {
    const int slot = position - page * layout::kPageTokens;
    const std::int64_t row = first + (position - length);
    if (position < a_.sinks) {
      store_sink(sequence, row, position);
      for (int i = 0; i < kPerThread; ++i) {
        if (!mine(i)) continue;
        append_code(0, i, slot, 0);
        append_code(1, i, slot, 0);
      }
      continue;
    }
    // Both loads under way before either is waited for.
    float key[kPerThread], value[kPerThread];
    load(a_.key, row, key);
    load(a_.value, row, value);
    append_key(key, row, slot);
    append_value(value, row, slot);
  }
  flush(0, end_slot);
  flush(1, end_slot);
}

}  // namespace kvq::cuda
