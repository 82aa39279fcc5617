#pragma once
// Appends new tokens to one side of one page. A block takes them one after the other; threads own neighbouring channels
// and collect their codes in a word each, which is written when it is full or at the end. With kRounded codes of a side
// may have been chosen before (round_blocks.h), and rows may have widths or levels of their own. Outliers are gathered
// first, in order of token and channel, and then put into the lists of the heads (page_append_list.cuh).
#include <kvq/kernels/cuda/quantize_append.h>

#include <algorithm>
#include <cmath>

#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/kernels/cuda/decode_shared.cuh>
#include <kvq/kernels/cuda/float_order.cuh>

namespace kvq::cuda {

constexpr int kMaxAppendWarps = 32;
constexpr int kMaxBoundaries = 255;
constexpr int kMaxCandidates = 128;  ///< on one end of a token; more, with many ties, take the slow way

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

/// Shared memory of a block. Host and device.
struct AppendMemory {
  int heads, stage;  ///< kv heads; entries that are gathered before they go into the lists
  int totals = 0, counts = 0, candidates = 0, boundaries = 0, bytes = 0;
  int values = 0, channels = 0, tokens = 0, order = 0;
  __host__ __device__ AppendMemory(const layout::SideShape& shape, int books)
      : heads(shape.kv_heads), stage(shape.has_outliers() ? shape.width() + 1024 : 0) {
    int end = 0;
    const auto place = [&end](int& offset, int size) {
      offset = end;
      end += (size + 15) / 16 * 16;
    };
    place(totals, 2 * 3 * (kMaxAppendWarps + 1) * 4);
    place(counts, 4 * (heads + 1) * 4);
    const int lists = 2 * (kMaxCandidates + 1), ranks = kMaxAppendWarps * shape.outliers_per_end;
    place(candidates, static_cast<int>(sizeof(Best)) * (lists > ranks ? lists : ranks));
    place(boundaries, books * kMaxBoundaries * 4);
    place(values, stage * 2), place(channels, stage * 2), place(order, stage * 2), place(tokens, stage);
    bytes = end;
  }
};

template <int kPerThread, bool kRounded>
class PageAppend {
 public:
  __device__ PageAppend(const QuantizeAppend& arguments, int side, char* shared)
      : a_(arguments),
        side_(side),
        shape_(side ? arguments.page.value : arguments.page.key),
        parts_(side ? arguments.page.value_parts : arguments.page.key_parts),
        tables_(side ? arguments.value_tables : arguments.key_tables),
        rounded_(side ? arguments.rounded_value : arguments.rounded_key),
        width_(shape_.width()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ & 31),
        warp_(thread_ >> 5),
        warps_(static_cast<int>(blockDim.x) >> 5),
        first_channel_(thread_ * kPerThread) {
    const AppendMemory memory(shape_, tables_.books);
    totals_ = reinterpret_cast<std::int32_t*>(shared + memory.totals);
    auto* counts = reinterpret_cast<std::int32_t*>(shared + memory.counts);
    old_count_ = counts, new_count_ = counts + memory.heads + 1;
    old_begin_ = counts + 2 * (memory.heads + 1), new_begin_ = counts + 3 * (memory.heads + 1);
    candidates_ = reinterpret_cast<Best*>(shared + memory.candidates);
    boundaries_ = reinterpret_cast<float*>(shared + memory.boundaries);
    stage_values_ = reinterpret_cast<std::uint16_t*>(shared + memory.values);
    stage_channels_ = reinterpret_cast<std::uint16_t*>(shared + memory.channels);
    stage_order_ = reinterpret_cast<std::uint16_t*>(shared + memory.order);
    stage_tokens_ = reinterpret_cast<std::uint8_t*>(shared + memory.tokens);
    stage_room_ = memory.stage;
  }

  __device__ void run(int sequence, int page_of_call);

 private:
  __device__ bool mine(int i) const { return first_channel_ + i < width_; }
  __device__ void load(std::int64_t row, float (&x)[kPerThread]) const {
    if (kRounded && rounded_.x != nullptr) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) x[i] = rounded_.x[row * width_ + min(first_channel_ + i, width_ - 1)];
      return;
    }
    load_numbers(
        side_ ? a_.value : a_.key, static_cast<int>(a_.type),
        [&](int i) { return row * width_ + min(first_channel_ + i, width_ - 1); }, x);
  }
  __device__ int code_of(int channel, float x_hat) const {
    const float* boundaries = boundaries_ + (tables_.books > 1 ? channel / shape_.head_dim * kMaxBoundaries : 0);
    int code = 0;
    for (int step = 1 << (shape_.bits - 1); step > 0; step >>= 1) {
      if (boundaries[code + step - 1] < x_hat) code += step;
    }
    return code;
  }
  __device__ void report_overflow(std::int64_t token, int channel) const {
    atomicMin(&a_.report->overflow, static_cast<unsigned long long>(token) << 17 | static_cast<unsigned>(side_) << 16 |
                                        static_cast<unsigned>(channel));
  }
  __device__ std::uint16_t exact(float x, float to_stored, std::int64_t token, int channel) const {
    const std::uint16_t half = __half_as_ushort(__float2half_rn(__fmul_rn(x, to_stored)));
    if ((half & 0x7fffu) >= 0x7c00u) report_overflow(token, channel);
    return half;
  }

  /// Room for a number of every warp, twice, so that one barrier between writing and reading is enough.
  __device__ std::int32_t* next_totals() {
    totals_turn_ ^= 1;
    return totals_ + totals_turn_ * 3 * (kMaxAppendWarps + 1);
  }
  /// Exclusive sum over the threads of a warp; the warp's sum.
  __device__ int sum_before_in_warp(int own, int& total) const {
    if constexpr (kPerThread == 1) {
      const unsigned marks = __ballot_sync(~0u, own != 0);
      total = __popc(marks);
      return __popc(marks & ((1u << lane_) - 1u));
    } else {
      int sum = own;
      for (int step = 1; step < 32; step <<= 1) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane_ >= step) sum += other;
      }
      total = __shfl_sync(~0u, sum, 31);
      return sum - own;
    }
  }
  /// What of `totals`, one number a warp, the warps before this one have; all of them in `total`.
  __device__ int sum_of_warps_before(const std::int32_t* totals, int& total) const {
    const unsigned of_lane = lane_ < warps_ ? static_cast<unsigned>(totals[lane_]) : 0u;
    total = static_cast<int>(__reduce_add_sync(~0u, of_lane));
    return static_cast<int>(__reduce_add_sync(~0u, lane_ < warp_ ? of_lane : 0u));
  }
  /// Exclusive sum over the threads of the block; the total in `total`.
  __device__ int sum_before(int own, int& total) {
    std::int32_t* totals = next_totals();
    int of_warp = 0;
    const int before = sum_before_in_warp(own, of_warp);
    if (lane_ == 0) totals[warp_] = of_warp;
    __syncthreads();
    return before + sum_of_warps_before(totals, total);
  }

  __device__ bool chosen() const { return kRounded && rounded_.codes != nullptr; }
  __device__ bool three_together() const { return kRounded && tables_.levels != 0; }
  /// Of a code of channel i in its row.
  __device__ int code_bits(int i) const {
    return kRounded && tables_.rows != nullptr ? tables_.rows[first_channel_ + i].bits() : shape_.bits;
  }
  __device__ std::uint32_t* row_words(int i) const {
    const int channel = first_channel_ + i;
    const std::int64_t offset =
        kRounded && tables_.rows != nullptr
            ? channel / shape_.head_dim * (shape_.code_bytes() / shape_.kv_heads) + tables_.rows[channel].offset()
            : std::int64_t{channel} * (8 * shape_.bits);
    return reinterpret_cast<std::uint32_t*>(page_ + parts_.codes + offset);
  }
  /// First bit of the row of channel i, three codes together, counted from the start of the page.
  __device__ std::int64_t level_row(int i) const {
    const int channel = first_channel_ + i;
    return 8 * (parts_.codes + channel / shape_.head_dim * (shape_.code_bytes() / shape_.kv_heads)) +
           channel % shape_.head_dim * layout::grouped_row_bits(tables_.levels, layout::kPageTokens);
  }
  __device__ void flip_bits(std::int64_t bit, std::uint32_t bits) const;
  __device__ std::uint32_t read_bits(std::int64_t bit, int count) const;
  __device__ void append_level(int i, int slot, int code);
  __device__ void resume_codes(int first_slot);
  __device__ void append_code(int i, int slot, int code);
  __device__ void flush_codes(int end_slot);
  __device__ void append_key(const float (&x)[kPerThread], std::int64_t row, int slot);
  __device__ void append_value(const float (&x)[kPerThread], std::int64_t row, int slot);
  __device__ void store_sink(const float (&x)[kPerThread], int sequence, std::int64_t row, int position);
  __device__ void keep_largest_excess(const float (&x)[kPerThread], unsigned& marks, int cap);
  __device__ bool take_extremes(const float (&x)[kPerThread], unsigned& taken);
  template <bool kLargest>
  __device__ void take_one_by_one(const float (&x)[kPerThread], unsigned& taken);
  // page_append_list.cuh
  __device__ void gather(const float (&x)[kPerThread], unsigned marks, int before, int total, std::int64_t row,
                         int slot);
  __device__ void put_into_lists();
  __device__ void sort_gathered();
  __device__ void reserve(int before, int after);
  __device__ std::uint8_t* block_of(int number) const;

  const QuantizeAppend& a_;
  const int side_;
  const layout::SideShape& shape_;
  const layout::SideParts& parts_;
  const EncodeTables& tables_;
  const RoundedTokens& rounded_;
  int width_, thread_, lane_, warp_, warps_, first_channel_;
  std::int32_t* totals_;
  std::int32_t *old_count_, *new_count_, *old_begin_, *new_begin_;  ///< by kv head: entries, where they begin
  Best* candidates_;
  float* boundaries_;
  std::uint16_t *stage_values_, *stage_channels_, *stage_order_;
  std::uint8_t* stage_tokens_;
  int stage_room_ = 0, staged_ = 0, totals_turn_ = 0;
  std::uint8_t* page_ = nullptr;
  std::uint32_t pending_[kPerThread] = {};                ///< bits of the word that is being filled; or the three codes
  std::uint32_t stored_[kRounded ? kPerThread : 1] = {};  ///< what the page has of three codes that are being completed
  float lower_[kPerThread], upper_[kPerThread], zero_[kPerThread], inverse_[kPerThread];  ///< of keys
  int old_blocks_ = 0;  ///< overflow blocks that were there before
  int free_top_ = 0;    ///< place in the list of free blocks of this page's first new one, plus 1
  int new_blocks_ = 0;
};

/// Fields of rows without gaps share words with those of other threads.
template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::flip_bits(std::int64_t bit, std::uint32_t bits) const {
  if (bits == 0) return;
  auto* words = reinterpret_cast<std::uint32_t*>(page_) + (bit >> 5);
  const int in_word = static_cast<int>(bit & 31);
  atomicXor(words, bits << in_word);
  if (in_word > 0 && bits >> (32 - in_word) != 0) atomicXor(words + 1, bits >> (32 - in_word));
}

template <int kPerThread, bool kRounded>
__device__ std::uint32_t PageAppend<kPerThread, kRounded>::read_bits(std::int64_t bit, int count) const {
  const auto* words = reinterpret_cast<const std::uint32_t*>(page_) + (bit >> 5);
  const int in_word = static_cast<int>(bit & 31);
  std::uint32_t value = words[0] >> in_word;
  if (in_word + count > 32) value |= words[1] << (32 - in_word);
  return value & ((1u << count) - 1u);
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::append_level(int i, int slot, int code) {
  const int levels = tables_.levels, bits = layout::group_bits(levels), place = slot % layout::kGroupCodes;
  const std::int64_t at = level_row(i) + slot / layout::kGroupCodes * bits;
  if (slot == layout::kPageTokens - 1) return flip_bits(at, static_cast<std::uint32_t>(code));
  pending_[i] += static_cast<std::uint32_t>(code) * static_cast<std::uint32_t>(place == 0   ? 1
                                                                               : place == 1 ? levels
                                                                                            : levels * levels);
  if (place + 1 < layout::kGroupCodes) return;
  flip_bits(at, pending_[i] ^ stored_[i]);
  pending_[i] = stored_[i] = 0;
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::append_code(int i, int slot, int code) {
  if (three_together()) {
    if constexpr (kRounded) append_level(i, slot, code);
    return;
  }
  const int bits = code_bits(i), bit = slot * bits, in_word = bit & 31;
  if (kRounded && bits == 0) return;
  pending_[i] |= static_cast<std::uint32_t>(code) << in_word;
  if (in_word + bits < 32) return;
  row_words(i)[bit >> 5] = pending_[i];
  pending_[i] = in_word + bits > 32 ? static_cast<std::uint32_t>(code) >> (32 - in_word) : 0;
}

/// What the page has of words, or of three codes, that are begun.
template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::resume_codes(int first_slot) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (three_together()) {
      if constexpr (kRounded) {
        const int bits = layout::group_bits(tables_.levels);
        if (first_slot % layout::kGroupCodes == 0 || first_slot == layout::kPageTokens - 1) continue;
        stored_[i] = pending_[i] = read_bits(level_row(i) + first_slot / layout::kGroupCodes * bits, bits);
      }
      continue;
    }
    const int bit = first_slot * code_bits(i);
    if ((bit & 31) != 0) pending_[i] = row_words(i)[bit >> 5] & ((1u << (bit & 31)) - 1u);
  }
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::flush_codes(int end_slot) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (three_together()) {
      if constexpr (kRounded) {
        if (end_slot % layout::kGroupCodes == 0 || end_slot == layout::kPageTokens) continue;
        flip_bits(level_row(i) + end_slot / layout::kGroupCodes * layout::group_bits(tables_.levels),
                  pending_[i] ^ stored_[i]);
      }
      continue;
    }
    const int bit = end_slot * code_bits(i);
    if ((bit & 31) != 0) row_words(i)[bit >> 5] = pending_[i];
  }
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::store_sink(const float (&x)[kPerThread], int sequence,
                                                             std::int64_t row, int position) {
  const std::int64_t base = (static_cast<std::int64_t>(sequence) * a_.sinks + position) * width_ + first_channel_;
  const float to_stored = power_of_two(-tables_.exponent);
  std::uint16_t* sinks = side_ ? a_.sink_values : a_.sink_keys;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (mine(i)) sinks[base + i] = exact(x[i], to_stored, row, first_channel_ + i);
  }
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::run(int sequence, int page_of_call) {
  const int length = a_.lengths[sequence], first = a_.first[sequence], count = a_.first[sequence + 1] - first;
  const int page = length / layout::kPageTokens + page_of_call;
  const int begin = max(length, page * layout::kPageTokens),
            end = min(length + count, (page + 1) * layout::kPageTokens);
  if (begin >= end) return;
  const std::uint32_t page_number = a_.block_table[sequence * a_.block_table_stride + page];
  const int first_slot = begin - page * layout::kPageTokens, end_slot = end - page * layout::kPageTokens;
  const int threads = static_cast<int>(blockDim.x);
  float x[kPerThread];
  load(first + (begin - length), x);

#pragma unroll
  for (int i = 0; i < kPerThread && side_ == 0; ++i) {
    if (!mine(i)) continue;
    lower_[i] = __ldg(tables_.lower + first_channel_ + i);
    upper_[i] = __ldg(tables_.upper + first_channel_ + i);
    zero_[i] = __fadd_rn(__fmul_rn(0.5f, lower_[i]), __fmul_rn(0.5f, upper_[i]));
    inverse_[i] = inverse_of(__fsub_rn(__fmul_rn(0.5f, upper_[i]), __fmul_rn(0.5f, lower_[i])));
  }
  const int inner = (1 << shape_.bits) - 1;
  for (int i = thread_; i < tables_.books * inner && !chosen(); i += threads) {
    boundaries_[i / inner * kMaxBoundaries + i % inner] = tables_.boundaries[i];
  }
  page_ = a_.pages + page_number * a_.page.bytes;
  if (first_slot == 0) {
    // Both sides clear what is theirs and nothing else.
    const auto clear = [&](std::int64_t offset, std::int64_t bytes) {
      for (std::int64_t at = thread_ * 2; at < bytes; at += threads * 2) {
        *reinterpret_cast<std::uint16_t*>(page_ + offset + at) = 0;
      }
    };
    if (kRounded) {
      clear(parts_.codes, shape_.code_bytes());
    } else {
      for (std::int64_t at = thread_ * 16; at < shape_.code_bytes(); at += threads * 16) {
        *reinterpret_cast<uint4*>(page_ + parts_.codes + at) = {};
      }
    }
    clear(parts_.ranges, shape_.range_bytes());
    clear(parts_.outlier_counts, shape_.count_bytes());
    clear(parts_.outlier_values, shape_.page_entries() * layout::kHalfBytes);
    clear(parts_.outlier_channels, shape_.page_entries() * shape_.channel_bytes());
    clear(parts_.outlier_tokens, layout::outlier_token_bytes(shape_.page_entries()));
    if (side_) {  // what belongs to none
      clear(a_.page.used, a_.page.bytes - a_.page.used);
      const std::int64_t counts_end = parts_.outlier_counts + shape_.count_bytes();
      if (a_.page.key.varying_outliers) clear(counts_end, a_.page.key_parts.overflow_link - counts_end);
    }
    if (thread_ == 0 && shape_.varying_outliers) {
      *reinterpret_cast<std::uint32_t*>(page_ + parts_.overflow_link) = layout::kNoBlock;
    }
    for (int head = thread_; head < shape_.kv_heads; head += threads) old_count_[head] = 0;
  } else {
    resume_codes(first_slot);
    const auto* counts = reinterpret_cast<const std::uint16_t*>(page_ + parts_.outlier_counts);
    for (int head = thread_; head < shape_.kv_heads && shape_.has_outliers(); head += threads) {
      old_count_[head] = counts[head];
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int position = begin;; ++position) {
    // In one place of the code: it is long.
    if (shape_.has_outliers() && (position == end || staged_ + width_ > stage_room_)) put_into_lists();
    if (position == end) break;
    const int slot = position - page * layout::kPageTokens;
    const std::int64_t row = first + (position - length);
    if (position < a_.sinks) {
      store_sink(x, sequence, row, position);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (mine(i)) append_code(i, slot, 0);
      }
    } else if (side_ == 0) {
      append_key(x, row, slot);
    } else {
      append_value(x, row, slot);
    }
    if (position + 1 < end) load(row + 1, x);
  }
  flush_codes(end_slot);
}

}  // namespace kvq::cuda

#include <kvq/kernels/cuda/page_append_keys.cuh>
#include <kvq/kernels/cuda/page_append_list.cuh>
#include <kvq/kernels/cuda/page_append_values.cuh>
