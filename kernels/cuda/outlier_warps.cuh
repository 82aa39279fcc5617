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

/// Outliers of keys. A lane has a group of heads and a stretch of tokens, whose entries it walks through in order, one
/// fetched ahead; neighbouring lanes have neighbouring groups, whose rows of the tables lie in different banks. The sums
/// of a token and head are in registers until the next begins, and written with every entry.
template <int kDim>
class KeyOutliers : Service {
 public:
  __device__ KeyOutliers(const DecodeParams& p, const Share& s, char* memory, int l, int half)
      : Service(p, s, memory, l),
        first_group_(s.first_head / kGroupHeads),
        groups_((s.first_head + s.heads - 1) / kGroupHeads + 1 - first_group_),
        turns_(reinterpret_cast<const std::uint64_t*>(memory + p.plan.turns)),
        units_(reinterpret_cast<const float*>(memory + p.plan.head_units)),
        code_zero_(reinterpret_cast<const float*>(memory + p.plan.code_zero)),
        queries_(reinterpret_cast<const uint4*>(memory + p.plan.outlier_query)) {
    while (tokens_ < groups_) tokens_ *= 2;  // a power of two: 64 lanes share 64 tokens and so many groups
    group_ = (32 * half + l) % tokens_;
    first_token_ = (32 * half + l) / tokens_ * tokens_;
    walks_ = group_ < groups_;
  }

  __device__ void run() {
    for (int index = 0; index < share.pages(); ++index) {
      const int first_warp = dense_warp(index, 0);
      float4* cells = reinterpret_cast<float4*>(shared + params.plan.corrections) + first_warp * kCorrectionCells;
      // What needs only the page's tail comes before the wait for the dense warps.
      barrier_wait(barriers.tail(index % kTailBuffers, kTailFull), tail_parity(index));
      Walk walk = start(index);
      for (int head = 0; head < share.heads; ++head) {
        barrier_wait(barriers.dense(first_warp + head, kCorrectionsEmpty), dense_parity(index) ^ 1);
      }
      if (walks_) clear(cells);
      barrier_wait(barriers.tail(index % kTailBuffers, kStagedFull), tail_parity(index));
      add_page(index, walk, cells);
      for (int head = 0; head < share.heads; ++head)
        barrier_arrive(barriers.dense(first_warp + head, kCorrectionsFull));
      barrier_arrive(barriers.tail(index % kTailBuffers, kStagedEmpty));
      barrier_arrive(barriers.tail(index % kTailBuffers, kTailEmpty));
    }
  }

 private:
  static constexpr int kPairs = kDim / 2;
  static constexpr int kGroupHeads = layout::outlier_group_heads(kDim);
  static constexpr bool kByteCounts = layout::outlier_count_bytes(kDim) == 1;
  using Count = std::conditional_t<kByteCounts, std::uint8_t, std::uint16_t>;
  static_assert(layout::outlier_entry_bytes(kDim) == 3, "channels of one byte");

  /// A lane's entries: those of its group in its tokens.
  struct Walk {
    int remaining = 0, last = 0;  ///< how many; where the last one ends
    int entry = 0, left = 0;      ///< the next one, and how many more of its token
    int token = -1;               ///< of the page: the present one, relative to the lane's first
    std::uint64_t packed = 0;     ///< counts of the tokens that follow, a byte each
    const Count* counts = nullptr;
  };
  struct Entry {
    int channel = -1;  ///< within the group; -1: none
    int token = 0;
    float value = 0.0f;
  };

  /// Entries of a token in groups begin … end - 1.
  __device__ static int entries(const Count* counts, int begin, int end) {
    int sum = 0;
    int group = begin;
    if constexpr (kByteCounts) {
      for (; group < end && (reinterpret_cast<std::uintptr_t>(counts + group) & 3); ++group) sum += counts[group];
      for (; group + 4 <= end; group += 4)
        sum = __dp4a(*reinterpret_cast<const std::uint32_t*>(counts + group), 0x01010101u, static_cast<unsigned>(sum));
    }
    for (; group < end; ++group) sum += counts[group];
    return sum;
  }

  __device__ std::int32_t* starts() const { return reinterpret_cast<std::int32_t*>(shared + params.plan.starts); }

  /// Counts of the page, and where the entries of this lane's tokens begin.
  __device__ Walk start(int index) const {
    const int groups = layout::outlier_groups(params.page.key.kv_heads, kDim);
    const auto* counts = reinterpret_cast<const Count*>(part(index, params.page.key_parts.outlier_counts));
    // Where tokens begin, each warp for itself: tokens `lane` and `lane + 32` of the page.
    const int lower = entries(counts + lane * groups, 0, groups);
    const int upper = entries(counts + (lane + 32) * groups, 0, groups);
    int lower_end = lower, upper_end = upper;
    for (int step = 1; step < 32; step <<= 1) {
      const int a = __shfl_up_sync(~0u, lower_end, step), b = __shfl_up_sync(~0u, upper_end, step);
      if (lane >= step) lower_end += a, upper_end += b;
    }
    upper_end += __shfl_sync(~0u, lower_end, 31);
    const int lower_begin = lower_end - lower, upper_begin = upper_end - upper;
    Walk walk;
    walk.counts = counts + first_token_ * groups + first_group_ + group_;
    for (int token = 0; token < tokens_; ++token) {
      const int at = first_token_ + token;
      const int begin = __shfl_sync(~0u, lower_begin, at & 31), begin_upper = __shfl_sync(~0u, upper_begin, at & 31);
      if (!walks_) continue;
      const Count* row = counts + at * groups;
      const int before = (at < 32 ? begin : begin_upper) + entries(row, 0, first_group_ + group_);
      const int own = row[first_group_ + group_];
      starts()[at * groups_ + group_] = before;
      if constexpr (kByteCounts) walk.packed |= static_cast<std::uint64_t>(own) << (8 * token);
      walk.remaining += own;
      if (own > 0) walk.last = before + own;
    }
    __syncwarp();
    return walk;
  }

  __device__ void clear(float4* cells) const {
    const int first = (first_group_ + group_) * kGroupHeads - share.first_head;
    for (int head = max(first, 0); head < min(first + kGroupHeads, share.heads); ++head) {
      for (int token = first_token_; token < first_token_ + tokens_; ++token)
        cells[head * kCorrectionCells + correction_cell(token)] = {};
    }
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
    const bool there = walk.remaining > 0, next_token = there && walk.left == 0;
    if constexpr (kByteCounts) {
      const int skipped = max(__ffsll(static_cast<long long>(walk.packed)) - 1, 0) >> 3;
      const std::uint64_t rest = walk.packed >> (8 * skipped);
      walk.left = next_token ? static_cast<int>(rest & 255u) : walk.left;
      walk.packed = next_token ? rest >> 8 : walk.packed;
      walk.token = next_token ? walk.token + skipped + 1 : walk.token;
    } else {
      const int groups = layout::outlier_groups(params.page.key.kv_heads, kDim);
      while (there && walk.left == 0) walk.left = walk.counts[++walk.token * groups];
      __syncwarp();
    }
    Entry result;
    result.token = first_token_ + max(walk.token, 0);
    if (next_token) walk.entry = starts()[result.token * groups_ + group_];
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
    result.channel = there ? channel : -1;
    result.value = half_bits_to_float(value);
    return result;
  }

  __device__ void add_page(int index, Walk& walk, float4* cells) const {
    const Lists lists{reinterpret_cast<const std::uint16_t*>(part(index, params.page.key_parts.outlier_values)),
                      staged_values(index),
                      reinterpret_cast<const std::uint8_t*>(part(index, params.page.key_parts.outlier_channels)),
                      staged_channels(index), static_cast<int>(params.page.key.outlier_capacity)};
    const int most = __reduce_max_sync(~0u, walk.remaining);
    if (__reduce_max_sync(~0u, walk.last) - lists.capacity <= kStagedEntries) {
      add_entries<false>(index, lists, walk, most, cells);
    } else {
      add_entries<true>(index, lists, walk, most, cells);
    }
  }

  /// `kFar`: some are in blocks that were not fetched ahead.
  template <bool kFar>
  __device__ void add_entries(int index, const Lists& lists, Walk& walk, int most, float4* cells) const {
    const std::uint32_t first_position = (share.first_page + index) * layout::kPageTokens;
    Entry next = fetch<kFar>(index, lists, walk);
    float4 sum = {};
    int cell = -1;
    for (int entry = 0; entry < most; ++entry) {
      const Entry now = next;
      next = fetch<kFar>(index, lists, walk);
      add(now, first_position, cells, sum, cell);
    }
    __syncwarp();
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

  /// score += (value - what code 0 stands for) * (rotated query)[channel].
  __device__ void add(const Entry& entry, std::uint32_t first_position, float4* cells, float4& sum, int& cell) const {
    const int in_group = max(entry.channel, 0), channel = in_group % kDim;
    const int head = (first_group_ + group_) * kGroupHeads + in_group / kDim - share.first_head;
    // A group may hold heads of other blocks.
    const bool own = walks_ && entry.channel >= 0 && (kGroupHeads == 1 || (head >= 0 && head < share.heads));
    const int row = own ? channel * params.plan.heads + head : 0;
    const uint4 query = queries_[row];
    const float2 angle = cos_sin_of(turn_fraction(turns_[channel % kPairs], first_position + entry.token));
    const float difference = entry.value * units_[own ? head : 0] - code_zero_[row];
    const float with_cosine = difference * angle.x, with_sine = difference * angle.y;
    const int present = head * kCorrectionCells + correction_cell(entry.token);
    if (own && present != cell) {
      sum = {};
      cell = present;
    }
    sum.x += with_cosine * low_float(query.x) + with_sine * low_float(query.z);
    sum.y += with_cosine * high_float(query.x) + with_sine * high_float(query.z);
    sum.z += with_cosine * low_float(query.y) + with_sine * low_float(query.w);
    sum.w += with_cosine * high_float(query.y) + with_sine * high_float(query.w);
    if (own) cells[present] = sum;
  }

  int first_group_, groups_;  ///< of the page's, that the block's heads are in
  int tokens_ = 1, group_ = 0, first_token_ = 0;
  bool walks_ = false;
  const std::uint64_t* turns_;
  const float *units_, *code_zero_;
  const uint4* queries_;
};

/// Outliers of values: lane = entry of a token, several tokens at a time. The entries of one token are of different
/// channels, so its lanes add to the output without atomics; tokens take turns.
template <int kDim>
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
    __half weights[kBlockQueries];
  };
  struct Page {
    const void* channels;
    const std::uint16_t* values;
    const std::uint32_t* ranges;
    const char* weights;
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
          shared + params.plan.weights + first_warp * kWeightBytes,
          shared_address(shared + params.plan.extra_output) + first_warp * kDim * kBlockQueries * 4};
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
    entry.output = page.output + own * kBlockQueries * 4;
    entry.difference = half_bits_to_float(page.values[place]) - (low_float(range) + high_float(range) * first);
    const char* weights = page.weights + head * kWeightBytes + from * 2;
#pragma unroll
    for (int query = 0; query < kBlockQueries; ++query)
      entry.weights[query] = *reinterpret_cast<const __half*>(weights + query * kWeightStride);
    return entry;
  }

  /// Predicated, not branched: the turns of a warp are a chain of short latencies.
  __device__ void add(const Entry& entry, bool now) const {
    const int active = now;
    float x = 0.0f, y = 0.0f, z = 0.0f, w = 0.0f;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
                 : "r"(entry.output), "r"(active)
                 : "memory");
    x += __half2float(entry.weights[0]) * entry.difference, y += __half2float(entry.weights[1]) * entry.difference;
    z += __half2float(entry.weights[2]) * entry.difference, w += __half2float(entry.weights[3]) * entry.difference;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"r"(
                     entry.output),
                 "f"(x), "f"(y), "f"(z), "f"(w), "r"(active)
                 : "memory");
  }
};

}  // namespace kvq::cuda
