// Launches the appending of tokens, one block per side of every page that gets some.
#include <kvq/kernels/cuda/page_append.cuh>

namespace kvq::cuda {

namespace {

template <int kPerThread, bool kRounded>
__global__ void __launch_bounds__(kPerThread < 8 ? 256 : kMaxAppendWarps * 32)
    append_kernel(const __grid_constant__ QuantizeAppend arguments) {
  extern __shared__ __align__(16) char shared[];
  PageAppend<kPerThread, kRounded>(arguments, static_cast<int>(blockIdx.z), shared)
      .run(static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
}

template <int kPerThread, bool kRounded>
Status launch_append(const QuantizeAppend& a, Stream stream) {
  const int threads = static_cast<int>(layout::div_up(layout::div_up(a.page.key.width(), kPerThread), 32) * 32);
  // A sequence may begin in the middle of a page.
  const auto pages = static_cast<unsigned>(layout::pages(a.most_tokens) + (a.most_tokens > 1 ? 1 : 0));
  const int bytes = std::max(AppendMemory(a.page.key, a.key_tables.books).bytes,
                             AppendMemory(a.page.value, a.value_tables.books).bytes);
  if (bytes > 48 * 1024 && cudaFuncSetAttribute(append_kernel<kPerThread, kRounded>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return Status::TooMuchSharedMemory;
  }
  append_kernel<kPerThread, kRounded><<<dim3(pages, a.batch, 2), threads, bytes, stream>>>(a);
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

template <int kPerThread>
Status launch_either(const QuantizeAppend& a, bool own_rows, Stream stream) {
  return own_rows ? launch_append<kPerThread, true>(a, stream) : launch_append<kPerThread, false>(a, stream);
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
  if (key.head_dim > 256) return Status::UnsupportedHeadDim;  // channels of outliers of one byte
  // Few threads, as long as there are not many values for each: they meet often.
  const int width = key.width();
  const bool own_rows = arguments.key_tables.rows != nullptr || arguments.value_tables.rows != nullptr ||
                        arguments.rounded_key.codes != nullptr || arguments.rounded_value.codes != nullptr;
  if (width <= 256) return launch_either<1>(arguments, own_rows, stream);
  if (width <= 512) return launch_either<2>(arguments, own_rows, stream);
  if (width <= 1024) return launch_either<4>(arguments, own_rows, stream);
  if (width <= 8192) return launch_either<8>(arguments, own_rows, stream);
  return Status::UnsupportedHeads;
}

}  // namespace kvq::cuda
