#pragma once
// The warps that serve the dense ones: one fetches what the heads of a page share (here), some turn the keys' outliers
// into corrections of scores (key_outliers.cuh), some add the values' outliers to the output (value_outliers.cuh). They
// take the block's pages in order.
//
// An outlier's dense code is 0 and decoded like any other, so what is added is its value minus what code 0 stands for.

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

  __device__ int slot(int index) const { return index & (params.plan.pages_in_flight - 1); }
  /// Of a page, for its first head.
  __device__ int dense_warp(int index) const { return slot(index) * params.plan.heads; }
  /// Pages that the dense warps of page `index` had before it.
  __device__ int turn(int index) const { return index >> params.plan.flight_shift; }
  __device__ char* tail(int index) const {
    return shared + params.plan.tails + barriers.tail_buffer(index) * params.plan.tail_bytes;
  }
  __device__ std::uint16_t* staged_values(int index) const {
    return reinterpret_cast<std::uint16_t*>(shared + params.plan.staged +
                                            barriers.tail_buffer(index) * params.plan.staged_entries * 3);
  }
  __device__ std::uint8_t* staged_channels(int index) const {
    return reinterpret_cast<std::uint8_t*>(staged_values(index) + params.plan.staged_entries);
  }
  /// A part of the page that lies in its tail.
  __device__ const char* part(int index, std::int64_t offset) const {
    return tail(index) + (offset - params.page.key_parts.ranges);
  }
  __device__ const std::uint8_t* page_address(int index) const {
    return params.pages + share.block_table[share.first_page + index] * params.page.bytes;
  }
};

/// Copies tails and angles, and, block by block, the overflow of their keys' outliers into one list.
class TailLoader : Service {
 public:
  using Service::Service;
  __device__ void run() {
    for (int index = 0; index < share.pages(); ++index) {
      // Walking through a chain takes long, and its buffer is free before the tail's.
      if (params.page.key.varying_outliers) {
        barriers.wait_for_free_tail(index, kStagedEmpty);
        stage(index);
      }
      barriers.wait_for_free_tail(index, kTailEmpty);
      copy(index);
    }
  }

 private:
  __device__ void copy(int index) {
    std::uint64_t* barrier = barriers.tail(index, kTailFull);
    const int angle_bytes = params.page.key.head_dim / 16 * 128;
    copy_expect(barrier, params.plan.tail_bytes + angle_bytes, lane);
    warp_copy(tail(index), page_address(index) + params.page.key_parts.ranges, params.plan.tail_bytes, barrier, lane);
    warp_copy(shared + params.plan.base_angles + barriers.tail_buffer(index) * angle_bytes,
              reinterpret_cast<const char*>(params.base_angles) +
                  static_cast<std::int64_t>(share.first_page + index) * angle_bytes,
              angle_bytes, barrier, lane);
    copy_commit(barrier);
  }
  __device__ void stage(int index) {
    const layout::OverflowBlock block = layout::overflow_block(params.page.key);
    std::uint32_t link =
        *reinterpret_cast<const std::uint32_t*>(page_address(index) + params.page.key_parts.overflow_link);
    for (int count = 0; link != layout::kNoBlock && count < staged_blocks(params.page.key.outlier_capacity); ++count) {
      // Blocks are not aligned to more than 4 bytes: word by word; values, channels, the link.
      const auto* from = reinterpret_cast<const std::uint32_t*>(params.key_overflow + link * block.bytes);
      const std::uint32_t word = lane < 7 ? __ldg(from + lane) : 0;
      if (lane < 4) reinterpret_cast<std::uint32_t*>(staged_values(index))[4 * count + lane] = word;
      if (lane >= 4 && lane < 6) reinterpret_cast<std::uint32_t*>(staged_channels(index))[2 * count + lane - 4] = word;
      link = __shfl_sync(~0u, word, 6);
    }
    barrier_arrive(barriers.tail(index, kStagedFull));
  }
};

}  // namespace kvq::cuda
