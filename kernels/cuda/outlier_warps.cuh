#pragma once
// The warps that serve the dense ones: one fetches what the heads of a page share, two turn the keys' outliers into
// corrections of scores, one adds the values' outliers to the output. They take the block's pages in order.
//
// An outlier's dense code is 0 and decoded like any other, so what is added is its value minus what code 0 stands for.

#include <type_traits>

#include <kvq/kernels/cuda/code_lookup.cuh>
#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

/// What the service warps share.
struct Service {
  const DecodeParams& params;
  const Share share;
  char* shared;
  Barriers barriers;
  int lane;

  __device__ Service(const DecodeParams& p, const Share& s, char* memory, int l)
      : params(p), share(s), shared(memory), barriers(memory, p.plan), lane(l) {}

  __device__ int dense_warp(int index, int head) const {
    return index % params.plan.pages_in_flight * params.plan.heads + head;
  }
  /// Pages that the dense warps of page `index` had before it, as a parity.
  __device__ unsigned dense_parity(int index) const { return index / params.plan.pages_in_flight & 1; }
  __device__ unsigned tail_parity(int index) const { return index / kTailBuffers & 1; }
  __device__ char* tail(int index) const {
    return shared + params.plan.tails + index % kTailBuffers * params.plan.tail_bytes;
  }
  __device__ std::uint16_t* staged_values(int index) const {
    return reinterpret_cast<std::uint16_t*>(shared + params.plan.staged + index % kTailBuffers * kStagedEntries * 3);
  }
  __device__ std::uint8_t* staged_channels(int index) const {
    return reinterpret_cast<std::uint8_t*>(staged_values(index) + kStagedEntries);
  }
  /// A part of the page that lies in its tail.
  __device__ const char* part(int index, std::int64_t offset) const {
    return tail(index) + (offset - params.page.key_parts.ranges);
  }
  __device__ const std::uint8_t* page_address(int index) const {
    return params.pages + share.block_table[share.first_page + index] * params.page.bytes;
  }
};

/// Copies tails, and, block by block, the overflow of their keys' outliers into one list.
class TailLoader : Service {
 public:
  using Service::Service;
  __device__ void run() {
    for (int index = 0; index < share.pages(); ++index) {
      // Walking through a chain takes long, and its buffer is free before the tail's.
      if (params.page.key.varying_outliers) {
        if (index >= kTailBuffers)
          barrier_wait(barriers.tail(index % kTailBuffers, kStagedEmpty), tail_parity(index) ^ 1);
        stage(index);
      }
      if (index >= kTailBuffers) barrier_wait(barriers.tail(index % kTailBuffers, kTailEmpty), tail_parity(index) ^ 1);
      copy(index);
    }
  }

 private:
  __device__ void copy(int index) {
    std::uint64_t* barrier = barriers.tail(index % kTailBuffers, kTailFull);
    copy_expect(barrier, params.plan.tail_bytes, lane);
    warp_copy(tail(index), page_address(index) + params.page.key_parts.ranges, params.plan.tail_bytes, barrier, lane);
    copy_commit(barrier);
  }
  __device__ void stage(int index) {
    const layout::OverflowBlock block = layout::overflow_block(params.page.key);
    std::uint32_t link =
        *reinterpret_cast<const std::uint32_t*>(page_address(index) + params.page.key_parts.overflow_link);
    for (int count = 0; link != layout::kNoBlock && count < kStagedBlocks; ++count) {
      // Blocks are not aligned to more than 4 bytes: word by word; values, channels, the link.
      const auto* from = reinterpret_cast<const std::uint32_t*>(params.key_overflow + link * block.bytes);
      const std::uint32_t word = lane < 7 ? __ldg(from + lane) : 0;
      if (lane < 4) reinterpret_cast<std::uint32_t*>(staged_values(index))[4 * count + lane] = word;
      if (lane >= 4 && lane < 6) reinterpret_cast<std::uint32_t*>(staged_channels(index))[2 * count + lane - 4] = word;
      link = __shfl_sync(~0u, word, 6);
    }
    barrier_arrive(barriers.tail(index % kTailBuffers, kStagedFull));
  }
};

/// Outliers of keys: lane = token, half a page a warp. Entries of a token are in order of groups of heads; a lane walks
/// through its own and fetches one ahead.
template <int kDim, int kQueries>
class KeyOutliers : Service {
 public:
  __device__ KeyOutliers(const DecodeParams& p, const Share& s, char* memory, int l, int half)
      : Service(p, s, memory, l),
        half_(half),
        token_(32 * half + l),
        turns_(reinterpret_cast<const std::uint64_t*>(memory + p.plan.turns)),
        units_(reinterpret_cast<const float*>(memory + p.plan.head_units)),
        code_zero_(reinterpret_cast<const float*>(memory + p.plan.code_zero)),
        queries_(reinterpret_cast<const __half2*>(memory + p.plan.outlier_query)) {}

  __device__ void run() {
    for (int index = 0; index < share.pages(); ++index) {
      const int first_warp = dense_warp(index, 0);
      auto* corrections = reinterpret_cast<float2*>(shared + params.plan.corrections) +
                          first_warp * (kQueries / 2) * kPlane + swizzled(token_);
      for (int head = 0; head < share.heads; ++head) {
        barrier_wait(barriers.dense(first_warp + head, kCorrectionsEmpty), dense_parity(index) ^ 1);
      }
      for (int plane = 0; plane < share.heads * (kQueries / 2); ++plane)
        corrections[plane * kPlane] = make_float2(0.0f, 0.0f);
      barrier_wait(barriers.tail(index % kTailBuffers, kTailFull), tail_parity(index));
      barrier_wait(barriers.tail(index % kTailBuffers, kStagedFull), tail_parity(index));
      add_page(index, corrections);
      for (int head = 0; head < share.heads; ++head)
        barrier_arrive(barriers.dense(first_warp + head, kCorrectionsFull));
      barrier_arrive(barriers.tail(index % kTailBuffers, kStagedEmpty));
      barrier_arrive(barriers.tail(index % kTailBuffers, kTailEmpty));
    }
  }

 private:
  static constexpr int kPairs = kDim / 2;
  static constexpr int kGroupHeads = layout::outlier_group_heads(kDim);
  static constexpr int kGroupWidth = kGroupHeads * kDim;
  static constexpr bool kByteCounts = layout::outlier_count_bytes(kDim) == 1;
  using Count = std::conditional_t<kByteCounts, std::uint8_t, std::uint16_t>;
  static_assert(layout::outlier_entry_bytes(kDim) == 3, "channels of one byte");

  /// A token's entries of the block's groups of heads.
  struct Walk {
    int entry = 0, remaining = 0, left = 0;  ///< left: of the present group
    int channel = 0, next_channel = 0;       ///< of the block's first head: where the present and the next group begin
    std::uint64_t packed = 0;                ///< counts of the groups that follow, a byte each
    const Count* counts = nullptr;           ///< the same where bytes do not hold them
  };
  struct Entry {
    int channel = -1;  ///< from the block's first head on; -1: none
    float value = 0.0f;
  };

  /// Entries of a token in groups begin … end - 1.
  __device__ static int entries(const Count* counts, int begin, int end) {
    int sum = 0;
    for (int group = begin; group < end; ++group) sum += counts[group];
    return sum;
  }

  __device__ Walk start(int index) const {
    const int groups = layout::outlier_groups(params.page.key.kv_heads, kDim);
    const auto* counts = reinterpret_cast<const Count*>(part(index, params.page.key_parts.outlier_counts));
    const int lower = entries(counts + lane * groups, 0, groups);
    const int own = half_ ? entries(counts + (lane + 32) * groups, 0, groups) : lower;
    int before = own;
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    before -= own;
    if (half_) before += __reduce_add_sync(~0u, lower);

    const Count* own_counts = counts + token_ * groups;
    const int first_group = share.first_head / kGroupHeads;
    const int end_group = (share.first_head + share.heads - 1) / kGroupHeads + 1;
    Walk walk;
    walk.entry = before + entries(own_counts, 0, first_group);
    walk.remaining = entries(own_counts, first_group, end_group);
    walk.next_channel = (first_group * kGroupHeads - share.first_head) * kDim;
    walk.counts = own_counts + first_group;
    if constexpr (kByteCounts) {
      for (int group = first_group; group < end_group; ++group) {
        walk.packed |= static_cast<std::uint64_t>(own_counts[group]) << (8 * (group - first_group));
      }
    }
    return walk;
  }

  /// Where a page's entries are; those that overflowed follow in a list of their own.
  struct Lists {
    const std::uint16_t *values, *more_values;
    const std::uint8_t *channels, *more_channels;
    int capacity;
  };

  /// The lane's next entry. Without branches where possible: the warp must stay together.
  template <bool kFar>
  __device__ Entry fetch(int index, const Lists& lists, Walk& walk) const {
    const bool there = walk.remaining > 0;
    if constexpr (kByteCounts) {
      const bool next_group = there && walk.left == 0;
      const int skipped = max(__ffsll(static_cast<long long>(walk.packed)) - 1, 0) >> 3;
      const std::uint64_t rest = walk.packed >> (8 * skipped);
      walk.left = next_group ? static_cast<int>(rest & 255u) : walk.left;
      walk.packed = next_group ? rest >> 8 : walk.packed;
      walk.channel = next_group ? walk.next_channel + skipped * kGroupWidth : walk.channel;
      walk.next_channel = next_group ? walk.channel + kGroupWidth : walk.next_channel;
    } else {
      while (there && walk.left == 0) {
        walk.left = *walk.counts++;
        walk.channel = walk.next_channel;
        walk.next_channel += kGroupWidth;
      }
      __syncwarp();
    }
    const int beyond = walk.entry - lists.capacity;
    const bool in_page = beyond < 0 || !there;
    const int at = there ? (in_page ? walk.entry : (kFar ? min(beyond, kStagedEntries - 1) : beyond)) : 0;
    std::uint16_t value = (in_page ? lists.values : lists.more_values)[at];
    int channel = (in_page ? lists.channels : lists.more_channels)[at];
    if constexpr (kFar) {
      if (there && beyond >= kStagedEntries) {
        const std::uint32_t found = far_overflow(index, beyond);
        value = static_cast<std::uint16_t>(found), channel = static_cast<int>(found >> 16);
      }
      __syncwarp();
    }
    ++walk.entry, --walk.left, --walk.remaining;
    channel += walk.channel;
    Entry result;
    // A group may hold heads of other blocks.
    const bool own = there && (kGroupHeads == 1 || (channel >= 0 && channel < share.heads * kDim));
    result.channel = own ? channel : -1;
    result.value = half_bits_to_float(value);
    return result;
  }

  __device__ void add_page(int index, float2* corrections) const {
    Walk walk = start(index);
    const std::uint32_t position = (share.first_page + index) * layout::kPageTokens + token_;
    const Lists lists{reinterpret_cast<const std::uint16_t*>(part(index, params.page.key_parts.outlier_values)),
                      staged_values(index),
                      reinterpret_cast<const std::uint8_t*>(part(index, params.page.key_parts.outlier_channels)),
                      staged_channels(index), static_cast<int>(params.page.key.outlier_capacity)};
    const int most = __reduce_max_sync(~0u, walk.remaining);
    const int last = __reduce_max_sync(~0u, walk.entry + walk.remaining) - lists.capacity;
    if (last <= kStagedEntries) {
      add_entries<false>(index, lists, walk, most, position, corrections);
    } else {
      add_entries<true>(index, lists, walk, most, position, corrections);
    }
  }

  /// `kFar`: some are in blocks that were not fetched ahead.
  template <bool kFar>
  __device__ void add_entries(int index, const Lists& lists, Walk& walk, int most, std::uint32_t position,
                              float2* corrections) const {
    Entry next = fetch<kFar>(index, lists, walk);
    for (int entry = 0; entry < most; ++entry) {
      const Entry now = next;
      next = fetch<kFar>(index, lists, walk);
      add(now, position, corrections);
    }
  }

  /// Value and, in the upper half, channel of an entry that is too far down the chain to be fetched ahead.
  __device__ __forceinline__ std::uint32_t far_overflow(int index, int entry) const {
    const layout::OverflowBlock block = layout::overflow_block(params.page.key);
    std::uint32_t link = *reinterpret_cast<const std::uint32_t*>(part(index, params.page.key_parts.overflow_link));
    for (int hop = 0; hop < entry / layout::kOutlierBlockEntries; ++hop) {
      link = *reinterpret_cast<const std::uint32_t*>(params.key_overflow + link * block.bytes + block.link);
    }
    const std::uint8_t* found = params.key_overflow + link * block.bytes;
    const int at = entry % layout::kOutlierBlockEntries;
    return reinterpret_cast<const std::uint16_t*>(found)[at] | static_cast<std::uint32_t>(found[block.channels + at])
                                                                   << 16;
  }

  /// score += (value - what code 0 stands for) * (rotated query)[channel]. Without an entry: adds 0 to some score.
  __device__ void add(const Entry& entry, std::uint32_t position, float2* corrections) const {
    const int at = max(entry.channel, 0), head = at / kDim, channel = at % kDim;
    float2* sums = corrections + head * (kQueries / 2) * kPlane;
    const bool second = channel >= kPairs;
    const int partner = second ? at - kPairs : at + kPairs;
    const float2 angle = cos_sin_of(turn_fraction(turns_[channel % kPairs], position));
    const float exact = entry.value * units_[head] - code_zero_[at], difference = entry.channel >= 0 ? exact : 0.0f;
    const float with_own = difference * angle.x, with_partner = (second ? -difference : difference) * angle.y;
    const __half2 *own = queries_ + at * (kQueries / 2), *other = queries_ + partner * (kQueries / 2);
#pragma unroll
    for (int two = 0; two < kQueries / 2; ++two) {
      const float2 a = __half22float2(own[two]), b = __half22float2(other[two]);
      float2 sum = sums[two * kPlane];
      sum.x += with_own * a.x + with_partner * b.x;
      sum.y += with_own * a.y + with_partner * b.y;
      sums[two * kPlane] = sum;
    }
  }

  int half_, token_;
  const std::uint64_t* turns_;
  const float *units_, *code_zero_;
  const __half2* queries_;
};

/// Outliers of values: lane = entry of a token, several tokens at a time. The entries of one token are of different
/// channels, so its lanes add to the output without atomics; tokens take turns.
template <int kDim, int kQueries>
class ValueOutliers : Service {
 public:
  using Service::Service;
  __device__ void run() {
    if (params.page.value.channel_bytes() == 1) {
      run<std::uint8_t>();
    } else {
      run<std::uint16_t>();
    }
  }

 private:
  static constexpr int kAhead = 4;  ///< sets of tokens whose entries are loaded together
  struct Entry {
    bool there = false;
    std::uint32_t output = 0;  ///< shared-memory address
    float difference = 0.0f;
    __half2 weights[kQueries / 2];
  };
  struct Page {
    const void* channels;
    const std::uint16_t* values;
    const std::uint32_t* ranges;
    const __half2* weights;
    std::uint32_t output;  ///< shared-memory address
  };

  template <typename Channel>
  __device__ void run() {
    const int entries = params.page.value.entries_per_token();
    const int tokens_at_once = entries >= 32 ? 1 : 32 / entries;
    const int own_token = lane / entries, own_entry = entries >= 32 ? lane : lane % entries;
    const bool used = own_token < tokens_at_once;
    const float one_book = __ldg(params.value_decoded);
    for (int index = 0; index < share.pages(); ++index) {
      barrier_wait(barriers.tail(index % kTailBuffers, kTailFull), tail_parity(index));
      const int first_warp = dense_warp(index, 0);
      for (int head = 0; head < share.heads; ++head) {
        barrier_wait(barriers.dense(first_warp + head, kWeightsFull), dense_parity(index));
      }
      const Page page{
          part(index, params.page.value_parts.outlier_channels),
          reinterpret_cast<const std::uint16_t*>(part(index, params.page.value_parts.outlier_values)),
          reinterpret_cast<const std::uint32_t*>(part(index, params.page.value_parts.ranges)),
          reinterpret_cast<const __half2*>(shared + params.plan.weights) + first_warp * (kQueries / 2) * kPlane,
          shared_address(shared + params.plan.extra_output) + first_warp * kDim * kQueries * 4};
      for (int begin = 0; begin < entries; begin += 32) {
        const int at = begin + own_entry;
        const bool there = used && at < entries;
        for (int first = 0; first < layout::kPageTokens; first += kAhead * tokens_at_once) {
          Entry set[kAhead];
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            set[i] = load<Channel>(page, there, first + i * tokens_at_once + own_token, at, entries, one_book);
          }
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            for (int turn = 0; turn < tokens_at_once; ++turn) {
              add(set[i], set[i].there && turn == own_token);
              __syncwarp();
            }
          }
        }
      }
      for (int head = 0; head < share.heads; ++head) barrier_arrive(barriers.dense(first_warp + head, kWeightsEmpty));
      barrier_arrive(barriers.tail(index % kTailBuffers, kTailEmpty));
    }
  }

  template <typename Channel>
  __device__ Entry load(const Page& page, bool there, int token, int at, int entries, float one_book) const {
    Entry entry;
    const bool inside = there && token < layout::kPageTokens;
    const int place = inside ? token * entries + at : 0, from = inside ? token : 0;
    const int channel = static_cast<const Channel*>(page.channels)[place] - share.first_head * kDim;
    entry.there = inside && channel >= 0 && channel < share.heads * kDim;
    const int own = entry.there ? channel : 0, head = own / kDim;
    const std::uint32_t range = page.ranges[from];
    const float first = params.value_books > 1
                            ? __ldg(params.value_decoded + ((share.first_head + head) << params.page.value.bits))
                            : one_book;
    entry.output = page.output + own * kQueries * 4;
    entry.difference = half_bits_to_float(page.values[place]) - (low_float(range) + high_float(range) * first);
    const __half2* weights = page.weights + head * (kQueries / 2) * kPlane + swizzled(from);
#pragma unroll
    for (int two = 0; two < kQueries / 2; ++two) entry.weights[two] = weights[two * kPlane];
    return entry;
  }

  /// Predicated, not branched: the turns of a warp are a chain of short latencies.
  __device__ void add(const Entry& entry, bool now) const {
    const int active = now;
#pragma unroll
    for (int two = 0; two < kQueries / 2; two += kQueries < 4 ? 1 : 2) {
      const std::uint32_t address = entry.output + 8 * two;
      const float2 a = __half22float2(entry.weights[two]);
      if constexpr (kQueries < 4) {
        float x = 0.0f, y = 0.0f;
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p ld.shared.v2.f32 {%0, %1}, [%2];\n}"
                     : "+f"(x), "+f"(y)
                     : "r"(address), "r"(active)
                     : "memory");
        x += a.x * entry.difference, y += a.y * entry.difference;
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p st.shared.v2.f32 [%0], {%1, %2};\n}" ::"r"(address),
                     "f"(x), "f"(y), "r"(active)
                     : "memory");
      } else {
        const float2 b = __half22float2(entry.weights[two + 1]);
        float x = 0.0f, y = 0.0f, z = 0.0f, w = 0.0f;
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                     : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
                     : "r"(address), "r"(active)
                     : "memory");
        x += a.x * entry.difference, y += a.y * entry.difference;
        z += b.x * entry.difference, w += b.y * entry.difference;
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"r"(address),
            "f"(x), "f"(y), "f"(z), "f"(w), "r"(active)
            : "memory");
      }
    }
  }
};

}  // namespace kvq::cuda
