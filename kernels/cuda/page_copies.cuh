#pragma once
// A warp's copies of pages into its shared memory. Codes come as soon as those before are used up; lists of outliers
// too, but where a head's list lies in its page is known from the page's counts alone, which are asked for a page
// ahead.

#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

/// The entries of a list that are of the block's head.
struct ListExtent {
  int begin = 0, count = 0;
};

template <int kDim>
class PageCopies {
 public:
  __device__ PageCopies(const DecodeParams& params, const Share& share, char* shared, int warp, int lane)
      : params_(params),
        share_(share),
        memory_(shared + params.plan.warp_memory + warp * params.plan.warp_bytes),
        barriers_(reinterpret_cast<std::uint64_t*>(shared + params.plan.barriers) + warp * kBarriers),
        lane_(lane),
        warps_(params.plan.warps),
        page_(share.first_page + warp),
        page_bytes_(static_cast<std::uint32_t>(params.page.bytes)),
        key_bytes_(static_cast<std::uint32_t>(params.page.key.code_bytes()) / params.page.key.kv_heads),
        value_bytes_(static_cast<std::uint32_t>(params.page.value.code_bytes()) / params.page.value.kv_heads),
        key_offset_(static_cast<std::uint32_t>(params.page.key_parts.codes) + share.kv_head * key_bytes_),
        value_offset_(static_cast<std::uint32_t>(params.page.value_parts.codes) + share.kv_head * value_bytes_),
        key_shift_(key_offset_ & 15u),
        value_shift_(value_offset_ & 15u) {
    key_bytes_ = (key_shift_ + key_bytes_ + 15u) & ~15u, key_offset_ -= key_shift_;
    value_bytes_ = (value_shift_ + value_bytes_ + 15u) & ~15u, value_offset_ -= value_shift_;
    // Parts that lane_ copies; see copy_lists().
    const bool keys = lane < 4;
    const layout::SideParts& parts = keys ? params.page.key_parts : params.page.value_parts;
    const ListPlan& list = keys ? params.plan.key_list : params.plan.value_list;
    if (lane == 0) {
      part_offset_ = static_cast<int>(params.page.value_parts.ranges) & ~15, part_to_ = params.plan.value_ranges;
    } else if (lane < 7) {
      const int part = (lane - 1) % 3;
      part_offset_ = static_cast<int>(part == 0   ? parts.outlier_values
                                      : part == 1 ? parts.outlier_channels
                                                  : parts.outlier_tokens);
      part_to_ = part == 0 ? list.values : part == 1 ? list.channels : list.tokens;
      part_bits_ = part == 0 ? 16 : part == 1 ? 8 : layout::kOutlierTokenBits;
      part_most_ = list.entries, part_room_ = list.room;
    }
  }

  __device__ void init_barriers() const {
    for (int which = 0; which < kBarriers; ++which) barrier_init(barriers_ + which, kCopyArrivals);
  }

  /// Everything of the first page under way, but for its lists.
  __device__ void begin() {
    next_ = number_of(page_), after_next_ = number_of(page_ + warps_);
    if (!more()) return;
    copy_keys();
    copy_values();
    if (has_lists()) ask_for_counts();
  }
  /// The first page's lists, where there are ranges or outliers to copy.
  __device__ void begin_lists() {
    if (!more()) return;
    copy_lists();
    advance();
  }

  /// Whether there is a page that is not copied yet: page(), which the copies are of.
  __device__ bool more() const { return page_ < share_.end_page; }
  __device__ int page() const { return page_; }
  /// From now on copies are of the warp's next page, whose counts are here.
  __device__ void advance() {
    page_ += warps_;
    next_ = after_next_;
    after_next_ = number_of(page_ + warps_);
    if (has_lists() && more()) ask_for_counts();
  }

  __device__ void copy_keys() const {
    if (!more()) return;
    constexpr int kAngleBytes = kDim / 16 * 128;
    if (kBulkCopies && lane_ != 0) return;
    copy_expect(barriers_ + kKeysFull, key_bytes_ + kAngleBytes, lane_);
    warp_copy(memory_ + params_.plan.key_codes, page_address(next_) + key_offset_, key_bytes_, barriers_ + kKeysFull,
              lane_);
    warp_copy(memory_ + params_.plan.base_angles,
              reinterpret_cast<const char*>(params_.base_angles) +
                  static_cast<std::uint32_t>(page_) * std::uint64_t{kAngleBytes},
              kAngleBytes, barriers_ + kKeysFull, lane_);
    copy_commit(barriers_ + kKeysFull);
  }
  __device__ void copy_values() const {
    if (!more()) return;
    if (kBulkCopies && lane_ != 0) return;
    copy_expect(barriers_ + kValuesFull, value_bytes_, lane_);
    warp_copy(memory_ + params_.plan.value_codes, page_address(next_) + value_offset_, value_bytes_,
              barriers_ + kValuesFull, lane_);
    copy_commit(barriers_ + kValuesFull);
  }

  /// Ranges and lists; sets the extents of the page's lists. The last thing to be copied of a page.
  __device__ void copy_lists() {
    if (!more()) return;
    key_list_ = extent(0), value_list_ = extent(1);
    list_page_ = next_;
    const std::uint8_t* page = page_address(next_);
    // Lane i has the i-th part: ranges, then values, channels and tokens of keys' outliers and of values'.
    const ListExtent extent = lane_ < 4 ? key_list_ : value_list_;
    const int entries = min(min(extent.count, part_most_), part_room_ - extent.begin);
    const int begin = (part_offset_ + (extent.begin * part_bits_ >> 3)) & ~15;
    const int end = part_offset_ + (((extent.begin + entries) * part_bits_ + 7) >> 3);
    std::uint32_t bytes = entries > 0 ? static_cast<std::uint32_t>((end - begin + 15) & ~15) : 0;
    if (lane_ == 0) bytes = static_cast<std::uint32_t>((range_shift() + layout::range_page_bytes() + 15) & ~15);
    const std::uint8_t* from = page + (lane_ == 0 ? part_offset_ : begin);
    const int to = part_to_;
    copy_parts(from, to, bytes);
  }

  __device__ void wait(WarpBarrier which, unsigned parity) const { barrier_wait(barriers_ + which, parity); }
  __device__ ListExtent key_list() const { return key_list_; }
  __device__ ListExtent value_list() const { return value_list_; }
  /// Number of the page that these are of.
  __device__ std::uint32_t list_page() const { return list_page_; }
  __device__ char* memory() const { return memory_; }
  /// Bytes before the codes of keys and of values, and before the ranges, where they were copied to; 0 but for own
  /// rows.
  __device__ int key_shift() const { return static_cast<int>(key_shift_); }
  __device__ int value_shift() const { return static_cast<int>(value_shift_); }
  __device__ int range_shift() const { return static_cast<int>(params_.page.value_parts.ranges & 15); }
  __device__ const std::uint8_t* page_address(std::uint32_t number) const {
    return params_.pages + static_cast<std::uint64_t>(number) * page_bytes_;
  }

 private:
  __device__ bool has_lists() const { return params_.page.key.has_outliers() || params_.page.value.has_outliers(); }
  __device__ std::uint32_t number_of(int page) const { return page < share_.end_page ? share_.block_table[page] : 0; }

  /// Counts by head, one to a lane; of further heads only what adds up before the block's, and its own.
  __device__ __forceinline__ void ask_for_counts() {
    const std::uint8_t* page = page_address(next_);
    const int heads = params_.page.key.kv_heads;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      if ((side ? params_.plan.value_list : params_.plan.key_list).entries == 0) continue;
      const auto* counts = reinterpret_cast<const std::uint16_t*>(
          page + static_cast<std::uint32_t>((side ? params_.page.value_parts : params_.page.key_parts).outlier_counts));
      counts_[side] = lane_ < heads ? __ldg(counts + lane_) : 0;
      if (heads > 32) {
        more_before_[side] = 0;
        for (int head = lane_ + 32; head < share_.kv_head; head += 32) more_before_[side] += __ldg(counts + head);
        if (share_.kv_head >= 32) own_[side] = __ldg(counts + share_.kv_head);
      }
    }
  }
  __device__ __forceinline__ ListExtent extent(int side) const {
    const int heads = params_.page.key.kv_heads, head = share_.kv_head;
    unsigned before = lane_ < head ? counts_[side] : 0;
    int count = __shfl_sync(~0u, counts_[side], head & 31);
    if (heads > 32) {
      before += more_before_[side];
      if (head >= 32) count = own_[side];
    }
    return {static_cast<int>(__reduce_add_sync(~0u, before)), count};
  }

  __device__ void copy_parts(const std::uint8_t* from, int to, std::uint32_t bytes) const {
    std::uint64_t* barrier = barriers_ + kListsFull;
    if constexpr (kBulkCopies) {
      copy_expect(barrier, __reduce_add_sync(~0u, bytes), lane_);
      __syncwarp();
      if (bytes > 0) warp_copy(memory_ + to, from, bytes, barrier, 0);
    } else {
      for (int part = 0; part < 7; ++part) {
        const auto address = reinterpret_cast<std::uint64_t>(from);
        warp_copy(memory_ + __shfl_sync(~0u, to, part), reinterpret_cast<const void*>(__shfl_sync(~0u, address, part)),
                  __shfl_sync(~0u, bytes, part), barrier, lane_);
      }
      copy_commit(barrier);
    }
  }

  const DecodeParams& params_;
  const Share& share_;
  char* memory_;
  std::uint64_t* barriers_;
  int lane_, warps_, page_;
  std::uint32_t page_bytes_, key_bytes_, value_bytes_, key_offset_, value_offset_, key_shift_, value_shift_;
  std::uint32_t next_ = 0, after_next_ = 0;  ///< where page() and the warp's page after it are
  int counts_[2] = {}, more_before_[2] = {}, own_[2] = {};
  ListExtent key_list_, value_list_;
  std::uint32_t list_page_ = 0;
  int part_offset_ = 0, part_to_ = 0, part_bits_ = 0, part_most_ = 0, part_room_ = 0;
};

}  // namespace kvq::cuda
