#pragma once
// The kernel of decode attention, and its launch for one pair of code width and head_dim. grid = (splits, groups of
// heads, batch x sets of queries); decode_plan.h says what a block is.

#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/dense_ends.cuh>
#include <kvq/kernels/cuda/key_outliers.cuh>
#include <kvq/kernels/cuda/value_outliers.cuh>

namespace kvq::cuda {

template <int kDim>
__device__ __forceinline__ void serve(const DecodeParams& params, const Share& share, char* shared, int role,
                                      int lane) {
  // Two roles of keys, two of values, two of keys, the loader: warps 4 apart share a scheduler.
  static_assert(kKeyWarps == 4 && kValueWarps == 2);
  if (role == 2 || role == 3) {
    if (params.page.value.outliers_per_end > 0) ValueOutliers<kDim>(params, share, shared, lane, role - 2).run();
  } else if (role < kServiceWarps - 1) {
    if (params.page.key.varying_outliers) {
      KeyOutliers<kDim>(params, share, shared, lane, role < 2 ? role : role - 2).run();
    }
  } else {
    TailLoader(params, share, shared, lane).run();
  }
}

template <int kBits, int kDim>
__global__ void __launch_bounds__((kMaxDenseWarps + kServiceWarps) * 32, 1)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(1024) char shared[];
  if (shared_address(shared) != kTablesAt) __trap();
  allow_next_kernel();
  // The shuffle tells the compiler that all lanes have the same.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const DecodePlan& plan = params.plan;
  const Share share(params);
  const Barriers barriers(shared, plan);
  if (threadIdx.x == 0) {
    barriers.init(share, params.page.key.varying_outliers, params.page.value.outliers_per_end > 0);
  }
  __syncthreads();

  const int dense_warps = plan.dense_warps(), warps = dense_warps + kServiceWarps;
  const int kv_head = params.key_books > 1 || params.value_books > 1 ? share.first_head : 0;
  const auto fill_tables = [&] {
    const int key_bits = kBits ? kBits : params.page.key.bits, value_bits = kBits ? kBits : params.page.value.bits;
    fill_table<kBits>(shared, params.key_decoded + (params.key_books > 1 ? kv_head << key_bits : 0), key_bits, 0, warp,
                      warps, lane);
    fill_table<kBits>(shared, params.value_decoded + (params.value_books > 1 ? kv_head << value_bits : 0), value_bits,
                      1, warp, warps, lane);
    auto* angles = reinterpret_cast<uint4*>(shared + plan.angles);
    const int threads = plan.threads();
    for (int index = threadIdx.x; index < kDim / 16 * 32; index += threads) {
      angles[index] = __ldg(reinterpret_cast<const uint4*>(params.key_angles) + index);
    }
    auto* ratios = reinterpret_cast<std::uint32_t*>(shared + plan.ratios);
    for (int index = threadIdx.x; index < kDim / 16 * 8; index += threads) ratios[index] = __ldg(params.ratios + index);
    auto* turns = reinterpret_cast<std::uint64_t*>(shared + plan.turns);
    for (int index = threadIdx.x; index < kDim / 2; index += threads) turns[index] = params.turns[index];
  };

  if (warp < dense_warps) {
    DenseWarp<kBits, kDim> dense(params, share, shared, warp, lane);
    const bool active = warp % plan.heads < share.heads;
    if (active) dense.prefetch();
    fill_tables();
    if (active) dense.prepare();
    __syncthreads();
    if (active) dense.run();
  } else {
    fill_tables();
    __syncthreads();
    const int role = warp - dense_warps;
    serve<kDim>(params, share, shared, role, lane);
  }
}

template <int kBits, int kDim>
Status launch_decode(const DecodeParams& params, int batch, Stream stream) {
  const auto kernel = decode_kernel<kBits, kDim>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, params.plan.bytes) != cudaSuccess) {
    return Status::LaunchFailed;
  }
  const int groups = (params.page.key.kv_heads + params.plan.heads - 1) / params.plan.heads;
  const dim3 grid(params.splits, groups, batch * params.query_sets);
  kernel<<<grid, params.plan.threads(), params.plan.bytes, stream>>>(params);
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

template <int kBits, int kDim>
Status launch_own_or_any(const DecodeParams& params, int batch, Stream stream) {
  return launch_decode < has_own_kernel(kBits, kDim) ? kBits : 0, kDim > (params, batch, stream);
}

/// One file per head_dim instantiates this for the code widths that have a kernel of their own, and for all others.
template <int kDim>
Status launch_decode_of(int own_bits, const DecodeParams& params, int batch, Stream stream) {
  switch (own_bits) {
    case 2:
      return launch_own_or_any<2, kDim>(params, batch, stream);
    case 3:
      return launch_own_or_any<3, kDim>(params, batch, stream);
    case 4:
      return launch_own_or_any<4, kDim>(params, batch, stream);
    case 8:
      return launch_own_or_any<8, kDim>(params, batch, stream);
    default:
      return launch_decode<0, kDim>(params, batch, stream);
  }
}

}  // namespace kvq::cuda
