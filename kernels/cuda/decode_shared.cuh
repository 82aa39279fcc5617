#pragma once
// What the warps of one block of the decode kernel know of each other: its share of the work, and the barriers between
// them. Every barrier has one completion per page (per page of a dense warp, or per use of a tail buffer), so its
// parity follows from a count. Except for copies all 32 lanes of a warp arrive: each vouches for its own accesses.

#include <kvq/kernels/cuda/decode_params.cuh>
#include <kvq/kernels/cuda/device_ops.cuh>

namespace kvq::cuda {

/// The block's sequence, heads and pages.
struct Share {
  int sequence, first_head, heads;  ///< kv heads; the last block of a sequence may have fewer than the plan
  int first_query, queries;         ///< of each kv head's
  int length;                       ///< tokens of the sequence
  int first_page, end_page;
  const std::uint32_t* block_table;

  __device__ explicit Share(const DecodeParams& params)
      : sequence(static_cast<int>(blockIdx.z) / params.query_sets),
        first_head(static_cast<int>(blockIdx.y) * params.plan.heads),
        heads(min(params.plan.heads, params.page.key.kv_heads - first_head)),
        first_query(static_cast<int>(blockIdx.z) % params.query_sets * kBlockQueries),
        queries(min(kBlockQueries, params.queries - first_query)),
        length(params.lengths[sequence]),
        block_table(params.block_table + sequence * params.block_table_stride) {
    const std::int64_t pages = layout::pages(length);
    first_page = static_cast<int>(pages * blockIdx.x / params.splits);
    end_page = static_cast<int>(pages * (blockIdx.x + 1) / params.splits);
  }
  __device__ int pages() const { return end_page - first_page; }
  /// Where query `query` of this block's of a kv head begins.
  __device__ std::int64_t query_at(const DecodeParams& params, int kv_head, int query, int head_dim) const {
    return (static_cast<std::int64_t>(sequence) * params.heads + kv_head * params.queries + first_query + query) *
           head_dim;
  }
};

enum DenseBarrier { kKeysFull, kValuesFull };
/// Of a page in flight, for all its heads; corrections have two buffers.
enum SlotBarrier { kCorrectionsFull, kCorrectionsEmpty = 2, kWeightsFull = 4, kWeightsEmpty };
enum TailBarrier { kTailFull, kTailEmpty, kStagedFull, kStagedEmpty };

struct Barriers {
  std::uint64_t* all;
  int flight_shift, tail_shift;
  __device__ Barriers(char* shared, const DecodePlan& plan)
      : all(reinterpret_cast<std::uint64_t*>(shared + plan.barriers)),
        flight_shift(plan.flight_shift),
        tail_shift(plan.tail_shift) {}
  __device__ std::uint64_t* dense(int warp, int which) const { return all + warp * kBarriersPerDenseWarp + which; }
  __device__ std::uint64_t* slot(int slot, int which) const {
    return all + kMaxDenseWarps * kBarriersPerDenseWarp + slot * kBarriersPerSlot + which;
  }
  /// Tail buffers are taken in turn by the pages of the block.
  __device__ int tail_buffer(int index) const { return index & ((1 << tail_shift) - 1); }
  __device__ unsigned tail_parity(int index) const { return index >> tail_shift & 1; }
  __device__ std::uint64_t* tail(int index, int which) const {
    return slot(1 << flight_shift, 0) + tail_buffer(index) * kBarriersPerTail + which;
  }
  __device__ void wait_for_tail(int index, int which) const { barrier_wait(tail(index, which), tail_parity(index)); }
  /// Until the page that had the buffer before has left it.
  __device__ void wait_for_free_tail(int index, int which) const {
    if (index >> tail_shift) barrier_wait(tail(index, which), tail_parity(index) ^ 1);
  }

  __device__ void init(const Share& share, bool key_outliers, bool value_outliers) const {
    for (int warp = 0; warp < kMaxDenseWarps; ++warp) {
      barrier_init(dense(warp, kKeysFull), kCopyArrivals);
      barrier_init(dense(warp, kValuesFull), kCopyArrivals);
    }
    for (int page = 0; page < 1 << flight_shift; ++page) {
      for (int buffer = 0; buffer < kCorrectionBuffers; ++buffer) {
        barrier_init(slot(page, kCorrectionsFull + buffer), kKeyWarps * 32);
        barrier_init(slot(page, kCorrectionsEmpty + buffer), share.heads * 32);
      }
      barrier_init(slot(page, kWeightsFull), share.heads * 32);
      barrier_init(slot(page, kWeightsEmpty), kValueWarps * 32);
    }
    for (int buffer = 0; buffer < 1 << tail_shift; ++buffer) {
      barrier_init(tail(buffer, kTailFull), kCopyArrivals);
      barrier_init(tail(buffer, kTailEmpty),
                   32 * (share.heads + (key_outliers ? kKeyWarps : 0) + (value_outliers ? kValueWarps : 0)));
      barrier_init(tail(buffer, kStagedFull), 32);
      barrier_init(tail(buffer, kStagedEmpty), kKeyWarps * 32);
    }
    barrier_init_fence();
  }
};

__device__ __forceinline__ float load_number(const void* numbers, std::int64_t index, int type) {
  switch (static_cast<std::int32_t>(type)) {
    case 0:
      return __half2float(static_cast<const __half*>(numbers)[index]);
    case 1:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(numbers)[index]);
    default:
      return static_cast<const float*>(numbers)[index];
  }
}

__device__ __forceinline__ void store_number(void* numbers, std::int64_t index, int type, float value) {
  switch (static_cast<std::int32_t>(type)) {
    case 0:
      static_cast<__half*>(numbers)[index] = __float2half_rn(value);
      break;
    case 1:
      static_cast<__nv_bfloat16*>(numbers)[index] = __float2bfloat16_rn(value);
      break;
    default:
      static_cast<float*>(numbers)[index] = value;
  }
}

/// Smallest power of two above |x|; 1 for 0. Within 2^±100, so that it and its inverse are normal.
__device__ __forceinline__ float power_above(float x) {
  if (x == 0.0f) return 1.0f;
  const int exponent = min(max(ilogbf(x) + 1, -100), 100);
  return __int_as_float((exponent + 127) << 23);
}

}  // namespace kvq::cuda
