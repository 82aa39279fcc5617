// Plan and dispatch of decode attention.
#include <kvq/kernels/cuda/decode_attention.h>

#include <algorithm>
#include <cmath>

#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

template <int kDim>
Status launch_decode_of(int own_bits, const DecodeParams& params, int batch, Stream stream);
extern template Status launch_decode_of<64>(int, const DecodeParams&, int, Stream);
extern template Status launch_decode_of<80>(int, const DecodeParams&, int, Stream);
extern template Status launch_decode_of<96>(int, const DecodeParams&, int, Stream);
extern template Status launch_decode_of<128>(int, const DecodeParams&, int, Stream);
extern template Status launch_decode_of<256>(int, const DecodeParams&, int, Stream);

namespace {

constexpr int kMostSplits = 512;  ///< their largest scores and sums take the place of a table

struct Device {
  int multiprocessors = 1, shared_bytes = 0;
};

Device device_limits() {
  int device = 0;
  Device limits;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return limits;
}

/// The width that selects the kernel; 0: the one for any width.
int own_bits(const PackedLayer& cache) {
  const layout::PageLayout& page = cache.page;
  if (cache.key.rows != nullptr) return kOwnRows;
  const int bits = page.key.bits;
  return bits == page.value.bits && has_own_kernel(bits, page.key.head_dim) ? bits : 0;
}

struct Resolved {
  Status status = Status::Ok;
  DecodePlan plan;
  int splits = 1, query_sets = 1;
};

Resolved resolve(const DecodeAttention& arguments) {
  Resolved result;
  const layout::SideShape &key = arguments.cache.page.key, &value = arguments.cache.page.value;
  const int head_dim = key.head_dim;
  const auto refuse = [&result](Status status) {
    result.status = status;
    return result;
  };
  if (head_dim != 64 && head_dim != 80 && head_dim != 96 && head_dim != 128 && head_dim != 256) {
    return refuse(Status::UnsupportedHeadDim);
  }
  if (key.kv_heads <= 0 || arguments.heads % key.kv_heads != 0 || arguments.heads / key.kv_heads > 8) {
    return refuse(Status::UnsupportedHeads);
  }
  if (key.token_ranges || !value.token_ranges || value.varying_outliers || key.outliers_per_end > 0 || key.bits < 1 ||
      key.bits > 8 || value.bits < 1 || value.bits > 8) {
    return refuse(Status::UnsupportedSide);
  }
  const Device device = device_limits();
  result.plan = best_decode_plan(arguments.cache.page, own_bits(arguments.cache), device.shared_bytes);
  if (result.plan.warps == 0) return refuse(Status::TooMuchSharedMemory);
  result.query_sets = static_cast<int>(layout::div_up(arguments.heads / key.kv_heads, kBlockQueries));
  const std::int64_t blocks = std::int64_t{std::max(arguments.batch, 1)} * result.query_sets * key.kv_heads;
  const std::int64_t pages = std::max<std::int64_t>(1, layout::pages(arguments.max_length));
  // One wave of blocks, each with the shared memory of a whole multiprocessor; never less than a page per block.
  const std::int64_t wave = std::max<std::int64_t>(1, device.multiprocessors / blocks);
  result.splits = static_cast<int>(arguments.splits > 0 ? arguments.splits : std::min(pages, wave));
  result.splits = std::min(result.splits, kMostSplits);
  return result;
}

/// Parts of the workspace.
struct Workspace {
  std::size_t normals = 0, partials = 0, bytes = 0;
  Workspace(const DecodeAttention& arguments, const Resolved& resolved) {
    if (resolved.splits == 1) return;
    const std::size_t rows = static_cast<std::size_t>(arguments.batch) * arguments.heads * resolved.splits;
    partials = (rows * sizeof(float2) + 15) / 16 * 16;
    bytes = partials + rows * arguments.cache.page.key.head_dim * sizeof(float);
  }
};

}  // namespace

std::size_t decode_workspace_bytes(const DecodeAttention& arguments) {
  const Resolved resolved = resolve(arguments);
  if (resolved.status != Status::Ok) return 0;
  return Workspace(arguments, resolved).bytes;
}

Status decode_attention(const DecodeAttention& arguments, Stream stream) {
  const Resolved resolved = resolve(arguments);
  if (resolved.status != Status::Ok) return resolved.status;
  if (arguments.batch == 0) return Status::Ok;
  if (arguments.workspace_bytes < decode_workspace_bytes(arguments)) return Status::WorkspaceTooSmall;
  if (arguments.rope.tokens < arguments.max_length) return Status::RopeTooShort;
  const PackedLayer& cache = arguments.cache;
  DecodeParams params;
  params.plan = resolved.plan;
  params.page = cache.page;
  params.pages = cache.pages, params.key_overflow = cache.key_overflow;
  params.block_table = cache.block_table, params.block_table_stride = cache.block_table_stride;
  params.lengths = cache.lengths;
  params.sinks = cache.sinks, params.sink_keys = cache.sink_keys, params.sink_values = cache.sink_values;
  params.sink_stride = cache.sink_stride >= 0 ? cache.sink_stride : std::int64_t{cache.sinks} * cache.page.key.width();
  params.key_zero = cache.key.zero, params.key_scale = cache.key.scale;
  params.key_rows = cache.key.rows, params.value_rows = LevelRows::of(cache.value.levels);
  params.key_decoded = cache.key.decoded, params.value_decoded = cache.value.decoded;
  params.key_books = cache.key.books, params.value_books = cache.value.books;
  params.key_unit = std::ldexp(1.0f, cache.key.exponent), params.value_unit = std::ldexp(1.0f, cache.value.exponent);
  params.turns = arguments.rope.turns;
  params.key_angles = arguments.rope.key_angles, params.base_angles = arguments.rope.base_angles;
  params.ratios = arguments.rope.ratios, params.fast_steps = arguments.rope.fast_steps;
  params.query = arguments.query, params.output = arguments.output;
  params.query_type = static_cast<std::int32_t>(arguments.query_type);
  params.output_type = static_cast<std::int32_t>(arguments.output_type);
  params.heads = arguments.heads, params.queries = arguments.heads / cache.page.key.kv_heads;
  params.query_sets = resolved.query_sets, params.splits = resolved.splits;
  params.score_scale = arguments.softmax_scale * 1.4426950408889634f;
  const Workspace workspace(arguments, resolved);
  auto* memory = static_cast<char*>(arguments.workspace);
  params.arrived = arguments.arrivals;
  params.partials = reinterpret_cast<float*>(memory + workspace.partials);
  params.normals = reinterpret_cast<float2*>(memory + workspace.normals);

  const int bits = own_bits(cache), head_dim = cache.page.key.head_dim;
  switch (head_dim) {
    case 64:
      return launch_decode_of<64>(bits, params, arguments.batch, stream);
    case 80:
      return launch_decode_of<80>(bits, params, arguments.batch, stream);
    case 96:
      return launch_decode_of<96>(bits, params, arguments.batch, stream);
    case 128:
      return launch_decode_of<128>(bits, params, arguments.batch, stream);
    default:
      return launch_decode_of<256>(bits, params, arguments.batch, stream);
  }
}

}  // namespace kvq::cuda
