#pragma once
// The kernel of decode attention, and its launch for one pair of code width and head_dim. grid = (splits, kv heads,
// batch x sets of queries); decode_plan.h says what a block is.

#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/head_warp.cuh>

namespace kvq::cuda {

template <int kBits, int kDim>
__global__ void __launch_bounds__(max_warps(kDim) * 32, 1) decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(1024) char shared[];
  if (shared_address(shared) != kTablesAt) __trap();
  // The shuffle tells the compiler that all lanes have the same.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const DecodePlan& plan = params.plan;
  const Share share(params);
  HeadWarp<kBits, kDim> head(params, share, shared, warp, lane);
  head.begin();
  if (warp == 0) head.prepare();
  if (warp == plan.warps - 1 && blockIdx.x == 0 && params.sinks > 0) head.attend_to_sinks();

  // With own rows, codebooks of kRowLevels numbers.
  const int key_bits = kBits > 0 ? kBits : kBits < 0 ? 8 : params.page.key.bits;
  const int value_bits = kBits > 0 ? kBits : kBits < 0 ? 8 : params.page.value.bits;
  const int key_book = params.key_books > 1 ? share.kv_head << key_bits : 0;
  const int value_book = params.value_books > 1 ? share.kv_head << value_bits : 0;
  fill_table<kBits>(shared, params.key_decoded + key_book, key_bits, 0, warp, plan.warps, lane);
  if constexpr (kBits == kOwnRows) {
    if (params.value_rows.has_triples()) {
      CodeLookup<kBits>::fill_triples(shared, params.value_decoded + value_book, params.value_rows, warp, plan.warps,
                                      lane);
    } else {
      fill_table<kBits>(shared, params.value_decoded + value_book, value_bits, 1, warp, plan.warps, lane);
    }
  } else {
    fill_table<kBits>(shared, params.value_decoded + value_book, value_bits, 1, warp, plan.warps, lane);
  }
  const int threads = plan.threads(), steps = kDim / 16, fast_steps = steps - steps / 2;
  if (params.fast_steps <= fast_steps) {
    // Warp 0 has enough to do.
    for (int step = warp - 1; step < params.fast_steps; step += max(plan.warps - 1, 1)) {
      if (step >= 0) head.prepare_fast_step(step);
    }
    if (plan.warps == 1 && warp == 0) {
      for (int step = 0; step < params.fast_steps; ++step) head.prepare_fast_step(step);
    }
  } else {
    auto* angles = reinterpret_cast<uint4*>(shared + plan.angles);
    for (int index = threadIdx.x; index < steps * 32; index += threads) {
      angles[index] = __ldg(reinterpret_cast<const uint4*>(params.key_angles) + index);
    }
  }
  auto* ratios = reinterpret_cast<std::uint32_t*>(shared + plan.ratios);
  for (int index = threadIdx.x; index < kDim / 16 * 8; index += threads) ratios[index] = __ldg(params.ratios + index);
  if constexpr (kBits == kOwnRows) {
    auto* rows = reinterpret_cast<std::uint32_t*>(shared + plan.rows);
    for (int index = threadIdx.x; index < kDim; index += threads)
      rows[index] = params.key_rows[share.kv_head * kDim + index].packed;
  }
  head.begin_lists();
  __syncthreads();
  head.run();
  merge<kDim>(params, share, shared);
}

template <int kBits, int kDim>
Status launch_decode(const DecodeParams& params, int batch, Stream stream) {
  const auto kernel = decode_kernel<kBits, kDim>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, params.plan.bytes) != cudaSuccess) {
    return Status::LaunchFailed;
  }
  const dim3 grid(params.splits, params.page.key.kv_heads, batch * params.query_sets);
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
    case kOwnRows:
      return launch_decode<kOwnRows, kDim>(params, batch, stream);
    default:
      return launch_decode<0, kDim>(params, batch, stream);
  }
}

}  // namespace kvq::cuda
