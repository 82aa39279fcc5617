// Launches the appending of tokens, one block per page that gets some.
#include <kvq/kernels/cuda/page_append.cuh>

namespace kvq::cuda {

namespace {

template <int kPerThread>
__global__ void __launch_bounds__(kMaxThreads) append_kernel(const __grid_constant__ QuantizeAppend arguments) {
  extern __shared__ __align__(16) char shared[];
  PageAppend<kPerThread>(arguments, shared).run(static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
}

std::size_t shared_bytes(const QuantizeAppend& a) {
  const int groups = layout::outlier_groups(a.page.key.kv_heads, a.page.key.head_dim);
  return 4 * (kMaxWarps + 1 + ((groups + 2) & ~1) + 1) + sizeof(Best) * kMaxWarps * a.page.value.outliers_per_end +
         4 * kMaxBoundaries * (a.key_tables.books + a.value_tables.books);
}

template <int kPerThread>
Status launch_append(const QuantizeAppend& a, Stream stream) {
  const int threads = static_cast<int>(layout::div_up(layout::div_up(a.page.key.width(), kPerThread), 32) * 32);
  // A sequence may begin in the middle of a page.
  const auto pages = static_cast<unsigned>(layout::pages(a.most_tokens) + (a.most_tokens > 1 ? 1 : 0));
  const std::size_t bytes = shared_bytes(a);
  if (bytes > 48 * 1024 && cudaFuncSetAttribute(append_kernel<kPerThread>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes)) != cudaSuccess) {
    return Status::TooMuchSharedMemory;
  }
  append_kernel<kPerThread><<<dim3(pages, a.batch), threads, bytes, stream>>>(a);
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace

std::int64_t append_overflow_blocks(const layout::SideShape& key, std::int64_t tokens) {
  if (!key.varying_outliers) return 0;
  // Every value an outlier, and the last block of every page only partly used.
  return layout::div_up(tokens * key.width(), layout::kOutlierBlockEntries) + layout::pages(tokens) + 1;
}

Status quantize_append(const QuantizeAppend& arguments, Stream stream) {
  const layout::SideShape &key = arguments.page.key, &value = arguments.page.value;
  if (key.token_ranges || !value.token_ranges || value.varying_outliers || key.outliers_per_end > 0 || key.bits < 1 ||
      key.bits > 8 || value.bits < 1 || value.bits > 8) {
    return Status::UnsupportedSide;
  }
  if (arguments.batch == 0 || arguments.most_tokens == 0) return Status::Ok;
  const int width = key.width();
  if (width <= kMaxThreads) return launch_append<1>(arguments, stream);
  if (width <= 2 * kMaxThreads) return launch_append<2>(arguments, stream);
  if (width <= 4 * kMaxThreads) return launch_append<4>(arguments, stream);
  if (width <= 8 * kMaxThreads) return launch_append<8>(arguments, stream);
  return Status::UnsupportedHeads;
}

}  // namespace kvq::cuda
