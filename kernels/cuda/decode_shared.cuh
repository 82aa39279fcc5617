#pragma once
// A block's share of the work, and numbers of the caller's types.

#include <kvq/kernels/cuda/decode_params.cuh>
#include <kvq/kernels/cuda/device_ops.cuh>

namespace kvq::cuda {

/// The block's sequence, head, queries and pages.
struct Share {
  int sequence, kv_head;
  int first_query, queries;  ///< of the kv head's
  int length;                ///< tokens of the sequence
  int first_page, end_page;
  const std::uint32_t* block_table;

  __device__ explicit Share(const DecodeParams& params)
      : sequence(static_cast<int>(blockIdx.z) / params.query_sets),
        kv_head(static_cast<int>(blockIdx.y)),
        first_query(static_cast<int>(blockIdx.z) % params.query_sets * kBlockQueries),
        queries(min(kBlockQueries, params.queries - first_query)),
        length(params.lengths[sequence]),
        block_table(params.block_table + sequence * params.block_table_stride) {
    const std::int64_t pages = layout::pages(length);
    first_page = static_cast<int>(pages * blockIdx.x / params.splits);
    end_page = static_cast<int>(pages * (blockIdx.x + 1) / params.splits);
  }
  /// Of query `query` of this block among all queries.
  __device__ std::int64_t query_row(const DecodeParams& params, int query) const {
    return static_cast<std::int64_t>(sequence) * params.heads + kv_head * params.queries + first_query + query;
  }
};

/// Of a warp: its copies. One completion per page each, so that parity follows from a count.
enum WarpBarrier { kKeysFull, kListsFull, kValuesFull, kBarriers };

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

/// `count` numbers at places that are asked for: one branch for all of them, loads side by side.
template <int kCount, typename IndexOf>
__device__ __forceinline__ void load_numbers(const void* numbers, int type, const IndexOf& index_of,
                                             float (&to)[kCount]) {
  const auto load = [&](auto* typed, const auto& convert) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = convert(typed[index_of(i)]);
  };
  switch (static_cast<std::int32_t>(type)) {
    case 0:
      return load(static_cast<const __half*>(numbers), [](__half x) { return __half2float(x); });
    case 1:
      return load(static_cast<const __nv_bfloat16*>(numbers), [](__nv_bfloat16 x) { return __bfloat162float(x); });
    default:
      return load(static_cast<const float*>(numbers), [](float x) { return x; });
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
  const int exponent = min(max((__float_as_int(x) >> 23 & 255) + 1, 27), 227);
  return x == 0.0f ? 1.0f : __int_as_float(exponent << 23);
}
/// Of a power of two within 2^±126.
__device__ __forceinline__ float inverse_power(float power) {
  return __int_as_float((254 << 23) - __float_as_int(power));
}

/// `exponent` within ±126.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

}  // namespace kvq::cuda
