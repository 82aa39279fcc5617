#pragma once
// The warps that turn the keys' outliers into corrections of scores; see service_warps.cuh.

#include <type_traits>

#include <kvq/kernels/cuda/service_warps.cuh>

namespace kvq::cuda {

/// Outliers of keys. A lane has a group of heads and a stretch of tokens, whose entries it walks through in order,
/// several at once; neighbouring lanes have neighbouring groups, whose rows of the tables lie in different banks. The
/// sums of a token and head are in registers until the next begins, and written with every entry.
template <int kDim>
class KeyOutliers : Service {
 public:
  __device__ KeyOutliers(const DecodeParams& p, const Share& s, char* memory, int l, int which)
      : Service(p, s, memory, l),
        first_group_(s.first_head / kGroupHeads),
        groups_((s.first_head + s.heads - 1) / kGroupHeads + 1 - first_group_),
        turns_(reinterpret_cast<const std::uint64_t*>(memory + p.plan.turns)),
        units_(reinterpret_cast<const float*>(memory + p.plan.head_units)),
        code_zero_(reinterpret_cast<const float*>(memory + p.plan.code_zero)),
        queries_(reinterpret_cast<const uint2*>(memory + p.plan.outlier_query)) {
    // The lanes of all warps share the tokens and groups: neighbouring lanes have neighbouring groups.
    int groups = 1;
    while (groups < groups_) groups *= 2;
    tokens_ = max(groups * layout::kPageTokens / (kKeyWarps * 32), 1);
    group_ = (32 * which + l) % groups;
    first_token_ = (32 * which + l) / groups * tokens_;
    walks_ = group_ < groups_ && first_token_ < layout::kPageTokens;
    eight_ = kByteCounts && layout::outlier_groups(p.page.key.kv_heads, kDim) == 8 &&
             ((p.page.key_parts.outlier_counts - p.page.key_parts.ranges) & 7) == 0;
    first_head_ = walks_ ? (first_group_ + group_) * kGroupHeads - s.first_head : 0;
  }

  __device__ void run() {
    for (int index = 0; index < share.pages(); ++index) {
      const int buffer = turn(index) % kCorrectionBuffers;
      auto* cells = reinterpret_cast<float4*>(shared + params.plan.corrections) +
                    (buffer * params.plan.dense_warps() + dense_warp(index)) * kCorrectionCells;
      barriers.wait_for_tail(index, kTailFull);
      Walk walk = eight_ ? start<true>(index) : start<false>(index);
      barrier_wait(barriers.slot(slot(index), kCorrectionsEmpty + buffer), (turn(index) / kCorrectionBuffers & 1) ^ 1);
      if (walks_) clear(cells);
      barriers.wait_for_tail(index, kStagedFull);
      add_page(index, walk, cells);
      barrier_arrive(barriers.slot(slot(index), kCorrectionsFull + buffer));
      barrier_arrive(barriers.tail(index, kStagedEmpty));
      barrier_arrive(barriers.tail(index, kTailEmpty));
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
    std::uint32_t entry = 0;      ///< the next one
    int left = 0;                 ///< how many more of its token
    std::uint32_t tokens = 0;     ///< bits: tokens of the lane that follow and have entries
    int token = 0;                ///< the present one, of the page
  };
  struct Entry {
    bool there = false, fresh = false;  ///< fresh: the first one of its token
    int channel = 0, token = 0;         ///< of the group, of the page
    float value = 0.0f;
  };

  __device__ std::uint32_t* starts() const { return reinterpret_cast<std::uint32_t*>(shared + params.plan.starts); }

  /// Sums of counts of a token: of groups before `group`, and of all. `kEight`: eight groups, a byte each.
  struct Sums {
    int before = 0, all = 0;
  };
  template <bool kEight>
  __device__ __forceinline__ static Sums sums_of(const Count* row, int groups, int group) {
    Sums sums;
    if constexpr (kEight) {
      const uint2 counts = *reinterpret_cast<const uint2*>(row);
      const std::uint64_t before = (1ull << (8 * group)) - 1;
      const auto sum = [&counts](std::uint32_t low, std::uint32_t high) {
        return static_cast<int>(__dp4a(counts.x, low & 0x01010101u, __dp4a(counts.y, high & 0x01010101u, 0u)));
      };
      sums.all = sum(~0u, ~0u);
      sums.before = sum(static_cast<std::uint32_t>(before), static_cast<std::uint32_t>(before >> 32));
    } else {
      int other = 0;
      if (kByteCounts && ((reinterpret_cast<std::uintptr_t>(row) | groups) & 3) == 0) {
        unsigned all = 0, before = 0;
#pragma unroll 2
        for (; other < groups; other += 4) {
          const std::uint32_t counts = *reinterpret_cast<const std::uint32_t*>(row + other);
          // 1 in the bytes of the groups before.
          const std::uint32_t ones = __funnelshift_lc(0x01010101u, 0u, 8 * max(min(group - other, 4), 0));
          all = __dp4a(counts, 0x01010101u, all);
          before = __dp4a(counts, ones, before);
        }
        sums.all = static_cast<int>(all), sums.before = static_cast<int>(before);
      }
#pragma unroll 1
      for (; other < groups; ++other) {
        const int count = row[other];
        sums.all += count;
        if (other < group) sums.before += count;
      }
    }
    return sums;
  }

  /// Counts of the page, and where the entries of this lane's tokens begin.
  template <bool kEight>
  __device__ Walk start(int index) const {
    const int groups = kEight ? 8 : layout::outlier_groups(params.page.key.kv_heads, kDim);
    const int group = first_group_ + group_;
    const auto* counts = reinterpret_cast<const Count*>(part(index, params.page.key_parts.outlier_counts));
    // Where tokens begin, each warp for itself: tokens 2 * lane and 2 * lane + 1 of the page.
    const int even = sums_of<kEight>(counts + 2 * lane * groups, groups, 0).all;
    const int both = even + sums_of<kEight>(counts + (2 * lane + 1) * groups, groups, 0).all;
    int end = both;
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += other;
    }
    const int before_pair = __shfl_sync(~0u, end - both, first_token_ / 2);
    const int before_odd = __shfl_sync(~0u, even, first_token_ / 2);
    int begin = before_pair + (first_token_ & 1 ? before_odd : 0);
    Walk walk;
    if (walks_) {
#pragma unroll(kEight ? 4 : 1)
      for (int token = 0; token < tokens_; ++token) {
        const Count* row = counts + (first_token_ + token) * groups;
        const Sums sums = sums_of<kEight>(row, groups, group);
        const int own = row[group];
        starts()[(first_token_ + token) * groups_ + group_] =
            static_cast<std::uint32_t>(begin + sums.before) | static_cast<std::uint32_t>(own) << kStartBits;
        walk.tokens |= (own > 0 ? 1u : 0u) << token;
        walk.remaining += own;
        if (own > 0) walk.last = begin + sums.before + own;
        begin += sums.all;
      }
    }
    __syncwarp();
    return walk;
  }
  /// A start's place in the list takes so many bits, its count the rest.
  static constexpr int kStartBits = 22;

  __device__ void clear(float4* cells) const {
    const int first = (first_group_ + group_) * kGroupHeads - share.first_head;
    for (int head = max(first, 0); head < min(first + kGroupHeads, share.heads); ++head) {
      for (int token = first_token_; token < first_token_ + tokens_; ++token)
        cells[head * kCorrectionCells + correction_cell(token)] = {};
    }
  }

  /// Where a page's entries are. Those that overflowed follow in a list of their own, so much further on.
  struct Lists {
    const char *values, *channels;
    std::int64_t more_values, more_channels;
    std::uint32_t capacity;
  };

  /// The lane's next entry; without one, some old one that is not there. Without branches where possible: the warp must
  /// stay together.
  template <bool kFar>
  __device__ __forceinline__ Entry fetch(int index, const Lists& lists, Walk& walk) const {
    Entry result;
    result.there = walk.remaining > 0;
    result.fresh = result.there && walk.left == 0;
    if (result.fresh) {
      walk.token = first_token_ + __ffs(walk.tokens) - 1;
      walk.tokens &= walk.tokens - 1;
      const std::uint32_t start = starts()[walk.token * groups_ + group_];
      walk.entry = start & ((1u << kStartBits) - 1u);
      walk.left = static_cast<int>(start >> kStartBits);
    }
    result.token = walk.token;
    const std::uint32_t at = result.there ? walk.entry : 0;
    const bool beyond = at >= lists.capacity;
    const std::uint32_t near = kFar ? min(at, lists.capacity + params.plan.staged_entries - 1) : at;
    std::uint16_t value =
        *reinterpret_cast<const std::uint16_t*>(lists.values + 2 * near + (beyond ? lists.more_values : 0));
    result.channel = *reinterpret_cast<const std::uint8_t*>(lists.channels + near + (beyond ? lists.more_channels : 0));
    if constexpr (kFar) {
      if (at >= lists.capacity + params.plan.staged_entries) {
        const std::uint32_t found = far_overflow(index, static_cast<int>(at - lists.capacity));
        value = static_cast<std::uint16_t>(found), result.channel = static_cast<int>(found >> 16);
      }
      __syncwarp();
    }
    ++walk.entry, --walk.left, --walk.remaining;
    result.value = half_bits_to_float(value);
    return result;
  }

  __device__ void add_page(int index, Walk& walk, float4* cells) const {
    const auto capacity = static_cast<std::uint32_t>(params.page.key.outlier_capacity);
    const char* values = part(index, params.page.key_parts.outlier_values);
    const char* channels = part(index, params.page.key_parts.outlier_channels);
    const Lists lists{values, channels, reinterpret_cast<const char*>(staged_values(index)) - values - 2 * capacity,
                      reinterpret_cast<const char*>(staged_channels(index)) - channels - capacity, capacity};
    const int most = __reduce_max_sync(~0u, walk.remaining);
    if (__reduce_max_sync(~0u, walk.last) <= static_cast<int>(capacity) + params.plan.staged_entries) {
      add_entries<false>(index, lists, walk, most, cells);
    } else {
      add_entries<true>(index, lists, walk, most, cells);
    }
  }

  /// `kFar`: some are in blocks that were not fetched ahead.
  template <bool kFar>
  __device__ void add_entries(int index, const Lists& lists, Walk& walk, int most, float4* cells) const {
    const std::uint32_t first_position = (share.first_page + index) * layout::kPageTokens;
    float4 sum = {};
    int head = -1;
    // Several entries' chains of latencies side by side; then their sums.
    for (int entry = 0; entry < most; entry += kAtOnce) {
      Entry entries[kAtOnce];
      Term terms[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) entries[i] = fetch<kFar>(index, lists, walk);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) terms[i] = term_of(entries[i], first_position, head);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float4& more = terms[i].more;
        if (terms[i].fresh) sum = {};
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        if (terms[i].cell >= 0) cells[terms[i].cell] = sum;
      }
    }
    __syncwarp();
  }
  static constexpr int kAtOnce = 4;

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

  /// What an entry adds to the scores of a cell, by query; cell -1: nothing.
  struct Term {
    float4 more;
    int cell;
    bool fresh;  ///< the first of its cell
  };

  /// (value - what code 0 stands for) * (rotated query)[channel]. `before`: head of the last entry.
  __device__ __forceinline__ Term term_of(const Entry& entry, std::uint32_t first_position, int& before) const {
    int head = first_head_, channel = entry.channel;
    bool own = entry.there, fresh = entry.fresh;
    if constexpr (kGroupHeads > 1) {
      head += channel / kDim;
      channel %= kDim;
      own = own && head >= 0 && head < share.heads;  // a group may hold heads of other blocks
      fresh = own && (fresh || head != before);
      before = entry.there ? head : before;
      head = own ? head : 0;
    }
    const bool second = channel >= kPairs;
    const int heads = params.plan.heads, row = channel * heads + head;
    const uint2 query = queries_[row], partner = queries_[row + (second ? -kPairs : kPairs) * heads];
    const float2 angle = cos_sin_of(turn_fraction(turns_[channel % kPairs], first_position + entry.token));
    const float difference = entry.value * units_[head] - code_zero_[row];
    const float with_cosine = difference * angle.x, with_sine = (second ? -difference : difference) * angle.y;
    Term term;
    term.more.x = with_cosine * low_float(query.x) + with_sine * low_float(partner.x);
    term.more.y = with_cosine * high_float(query.x) + with_sine * high_float(partner.x);
    term.more.z = with_cosine * low_float(query.y) + with_sine * low_float(partner.y);
    term.more.w = with_cosine * high_float(query.y) + with_sine * high_float(partner.y);
    term.cell = own ? head * kCorrectionCells + correction_cell(entry.token) : -1;
    term.fresh = fresh;
    return term;
  }

  int first_group_, groups_;  ///< of the page's, that the block's heads are in
  int tokens_ = 1, group_ = 0, first_token_ = 0;
  int first_head_ = 0;  ///< of the lane's group, from the block's first head on
  bool walks_ = false, eight_ = false;
  const std::uint64_t* turns_;
  const float *units_, *code_zero_;
  const uint2* queries_;
};

}  // namespace kvq::cuda
