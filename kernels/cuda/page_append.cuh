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

#include <kvq/kernels/cuda/page_append_keys.cuh>
#include <kvq/kernels/cuda/page_append_values.cuh>
