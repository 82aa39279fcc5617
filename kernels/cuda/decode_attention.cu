// Plan, dispatch, merge and rotation tables of decode attention.
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

constexpr int kMostParts = 2048;  ///< of a sequence: splits * pages in flight

struct Device {
  int multiprocessors = 1, shared_bytes = 0, major = 0;
};

Device device_limits() {
  int device = 0;
  Device limits;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&limits.major, cudaDevAttrComputeCapabilityMajor, device);
  return limits;
}

/// The width that selects the kernel; 0: the one for any width.
int own_bits(const layout::PageLayout& page) {
  const int bits = page.key.bits;
  return bits == page.value.bits && has_own_kernel(bits, page.key.head_dim) ? bits : 0;
}

struct Resolved {
  Status status = Status::Ok;
  DecodePlan plan;
  int splits = 1, query_sets = 1;
  std::int64_t parts() const { return std::int64_t{splits} * plan.pages_in_flight; }
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
  const bool own_books = arguments.cache.key.books > 1 || arguments.cache.value.books > 1;
  const Device device = device_limits();
  result.plan = best_decode_plan(arguments.cache.page, own_bits(arguments.cache.page), own_books, device.shared_bytes);
  if (result.plan.heads == 0) return refuse(Status::TooMuchSharedMemory);
  result.query_sets = static_cast<int>(layout::div_up(arguments.heads / key.kv_heads, kBlockQueries));
  const std::int64_t blocks =
      std::int64_t{std::max(arguments.batch, 1)} * result.query_sets * layout::div_up(key.kv_heads, result.plan.heads);
  const std::int64_t most =
      std::max<std::int64_t>(1, layout::div_up(layout::pages(arguments.max_length), result.plan.pages_in_flight));
  // One wave of blocks, each with the shared memory of a whole multiprocessor; never less than a page per warp.
  const std::int64_t wave = std::max<std::int64_t>(1, device.multiprocessors / blocks);
  result.splits = static_cast<int>(arguments.splits > 0 ? arguments.splits : std::min(most, wave));
  result.splits = std::min(result.splits, kMostParts / result.plan.pages_in_flight);
  return result;
}

std::size_t partial_bytes(const DecodeAttention& arguments, const Resolved& resolved) {
  return sizeof(float) * arguments.batch * arguments.heads * resolved.parts() * arguments.cache.page.key.head_dim;
}

/// A part's weight is that of its scores: output = sum of partials * 2^(largest - overall largest) / sum of weights.
/// grid = (heads, batch); groups of threads share the parts, then their sums are added up.
__global__ void merge_kernel(const float* partials, const float2* normals, int parts, int head_dim, float unit,
                             void* output, int output_type) {
  constexpr int kMaxGroups = 8;
  __shared__ float shares[kMostParts];
  __shared__ float sums[kMaxGroups][256];
  __shared__ float totals[32];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const float* partial = partials + row * parts * head_dim;
  const float2* normal = normals + row * parts;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;

  wait_for_kernel_before();
  float largest = -1e30f;
  for (int part = lane; part < parts; part += 32) largest = fmaxf(largest, normal[part].x);
  for (int step = 1; step < 32; step <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  float weight = 0.0f;
  for (int part = thread; part < parts; part += threads) {
    const float2 own = normal[part];
    shares[part] = own.y > 0.0f ? exp2_fast(own.x - largest) : 0.0f;
    weight += shares[part] * own.y;
  }
  for (int step = 1; step < 32; step <<= 1) weight += __shfl_xor_sync(~0u, weight, step);
  if (lane == 0) totals[thread / 32] = weight;
  __syncthreads();

  const int groups = min(kMaxGroups, threads / head_dim), group = thread / head_dim, channel = thread % head_dim;
  if (group < groups) {
    float sum = 0.0f;
#pragma unroll 8
    for (int part = group; part < parts; part += groups) {
      sum += shares[part] * partial[static_cast<std::int64_t>(part) * head_dim + channel];
    }
    sums[group][channel] = sum;
  }
  __syncthreads();
  if (group != 0) return;
  float sum = 0.0f;
  weight = 0.0f;
  for (int other = 0; other < groups; ++other) sum += sums[other][channel];
  for (int warp = 0; warp < threads / 32; ++warp) weight += totals[warp];
  store_number(output, row * head_dim + channel, output_type, weight > 0.0f ? sum * unit / weight : 0.0f);
}

struct Turns {
  std::uint64_t of_pair[128];
};

std::int64_t key_angle_words(int head_dim) { return std::int64_t{head_dim / 16} * 32 * 4; }
std::int64_t ratio_words(int head_dim) { return std::int64_t{head_dim / 16} * 8; }
std::int64_t base_angle_words(int head_dim) { return std::int64_t{head_dim / 16} * 8 * 4; }  // per page
std::int64_t base_pages(std::int64_t tokens) { return layout::pages(std::max<std::int64_t>(tokens, 1)); }

/// Turn per token in (-1/2, 1/2].
__host__ __device__ double signed_turns(std::uint64_t turns) {
  return static_cast<double>(static_cast<std::int64_t>(turns)) * 0x1p-64;
}

/// Radians from the middle of a page to its ends.
__host__ __device__ double reach_of(std::uint64_t turns) {
  return signed_turns(turns) * 6.283185307179586 * (layout::kPageTokens / 2);
}

/// A cubic in u is cos(reach u) and sin(reach u), |u| <= 1, to 2e-4 up to here.
constexpr double kLongestReach = 0.44;

/// Bessel function of the first kind, |x| < 1.
__device__ double bessel(int order, double x) {
  double term = 1.0, sum = 0.0;
  for (int k = 1; k <= order; ++k) term *= 0.5 * x / k;
  for (int k = 1; k < 10; ++k) {
    sum += term;
    term *= -0.25 * x * x / (k * (k + order));
  }
  return sum;
}

/// Chebyshev series of cos(reach u) and sin(reach u), cut off: cosine[0] + cosine[1] u^2, sine[0] u + sine[1] u^3.
struct Cubic {
  double cosine[2], sine[2];
  __device__ explicit Cubic(double reach)
      : cosine{bessel(0, reach) + 2 * bessel(2, reach), -4 * bessel(2, reach)},
        sine{2 * bessel(1, reach) + 6 * bessel(3, reach), -8 * bessel(3, reach)} {}
};

__device__ double2 exact_cos_sin(std::uint64_t turns_per_step, std::uint64_t position) {
  // The product's high bits, whole turns, fall away; what is left is exact to 2^-53 of a turn.
  double sine, cosine;
  sincospi(2.0 * signed_turns(turns_per_step * position), &sine, &cosine);
  return make_double2(cosine, sine);
}

/// A pair of fp16 numbers of the two pairs of channels that lane t has in a step.
template <typename Function>
__device__ std::uint32_t both_pairs(const Turns& turns, int step, int t, const Function& number) {
  return pack_halves(static_cast<float>(number(turns.of_pair[8 * step + t])),
                     static_cast<float>(number(turns.of_pair[8 * step + t + 4])));
}

/// See dense_warp.cuh for what each is.
__global__ void rope_kernel(const Turns turns, int head_dim, int fast_steps, std::int64_t pages,
                            std::uint64_t* turns_out, std::uint32_t* key_angles, std::uint32_t* ratios,
                            std::uint32_t* base_angles) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int steps = head_dim / 16;
  if (index < head_dim / 2) turns_out[index] = turns.of_pair[index];
  if (index < steps * 32) {
    const int lane = static_cast<int>(index % 32), step = static_cast<int>(index / 32), g = lane / 4;
    for (int r = 0; r < 2; ++r) {
      const auto offset = static_cast<std::uint64_t>(8 * g + r);
      std::uint32_t* words = key_angles + index * 4 + 2 * r;
      words[0] = both_pairs(turns, step, lane % 4, [&](std::uint64_t turn) { return exact_cos_sin(turn, offset).x; });
      words[1] = both_pairs(turns, step, lane % 4, [&](std::uint64_t turn) { return exact_cos_sin(turn, offset).y; });
    }
  }
  const int t = static_cast<int>(index % 4), odd = static_cast<int>(index / 4 % 2);
  if (index < steps * 8) {
    ratios[index] = both_pairs(turns, static_cast<int>(index / 8), t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double* of = odd ? cubic.sine : cubic.cosine;
      return of[0] == 0.0 || fabs(reach_of(turn)) > kLongestReach ? 0.0 : of[1] / of[0];
    });
  }
  if (index >= pages * steps * 8) return;
  const int step = static_cast<int>(index / 8 % steps);
  const auto begin = static_cast<std::uint64_t>(index / (8 * steps)) * layout::kPageTokens;
  std::uint32_t* words = base_angles + index * 4;
  if (step < fast_steps) {
    for (int two = 0; two < 2; ++two) {
      const std::uint64_t position = begin + 2 * (2 * two + odd);
      words[2 * two] = both_pairs(turns, step, t, [&](std::uint64_t turn) { return exact_cos_sin(turn, position).x; });
      words[2 * two + 1] =
          both_pairs(turns, step, t, [&](std::uint64_t turn) { return exact_cos_sin(turn, position).y; });
    }
  } else {
    // The coefficients of odd powers belong to the query turned by another quarter.
    const std::uint64_t middle = begin + layout::kPageTokens / 2;
    words[0] = both_pairs(turns, step, t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double2 angle = exact_cos_sin(turn, middle);
      return odd ? -angle.y * cubic.sine[0] : angle.x * cubic.cosine[0];
    });
    words[1] = both_pairs(turns, step, t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double2 angle = exact_cos_sin(turn, middle);
      return odd ? angle.x * cubic.sine[0] : angle.y * cubic.cosine[0];
    });
    words[2] = words[3] = 0;
  }
}

}  // namespace

std::size_t decode_workspace_bytes(const DecodeAttention& arguments) {
  const Resolved resolved = resolve(arguments);
  if (resolved.status != Status::Ok) return 0;
  return partial_bytes(arguments, resolved) + sizeof(float2) * arguments.batch * arguments.heads * resolved.parts();
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
  params.partials = static_cast<float*>(arguments.workspace);
  params.normals =
      reinterpret_cast<float2*>(static_cast<char*>(arguments.workspace) + partial_bytes(arguments, resolved));

  const int bits = own_bits(cache.page), head_dim = cache.page.key.head_dim;
  Status status = Status::Ok;
  switch (head_dim) {
    case 64:
      status = launch_decode_of<64>(bits, params, arguments.batch, stream);
      break;
    case 80:
      status = launch_decode_of<80>(bits, params, arguments.batch, stream);
      break;
    case 96:
      status = launch_decode_of<96>(bits, params, arguments.batch, stream);
      break;
    case 128:
      status = launch_decode_of<128>(bits, params, arguments.batch, stream);
      break;
    default:
      status = launch_decode_of<256>(bits, params, arguments.batch, stream);
  }
  if (status != Status::Ok) return status;
  // The split of the first-level cache that the main kernel has: changing it between the two would cost microseconds.
  if (cudaFuncSetAttribute(merge_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared) != cudaSuccess) {
    return Status::LaunchFailed;
  }
  // Its blocks are set up while the last ones of the main kernel run.
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(arguments.heads, arguments.batch);
  launch.blockDim = dim3(512);
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = device_limits().major >= 9 ? 1 : 0;
  const cudaError_t launched =
      cudaLaunchKernelEx(&launch, merge_kernel, static_cast<const float*>(params.partials),
                         static_cast<const float2*>(params.normals), static_cast<int>(resolved.parts()), head_dim,
                         params.value_unit, params.output, static_cast<int>(params.output_type));
  return launched == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

std::size_t rope_table_bytes(int head_dim, std::int64_t tokens) {
  return 8 * static_cast<std::size_t>(head_dim / 2) +
         4 * static_cast<std::size_t>(key_angle_words(head_dim) + ratio_words(head_dim) +
                                      base_pages(tokens) * base_angle_words(head_dim));
}

Status build_rope_tables(const double* inverse_frequencies, int head_dim, std::int64_t tokens, void* memory,
                         RopeTables& tables, Stream stream) {
  if (head_dim <= 0 || head_dim > 256 || head_dim % 16 != 0) return Status::UnsupportedHeadDim;
  Turns turns = {};
  // The first half; or all of them, if one of the others turns too far for a cubic.
  const int steps = head_dim / 16;
  int fast_steps = steps - steps / 2;
  for (int pair = 0; pair < head_dim / 2; ++pair) {
    const long double exact = inverse_frequencies[pair] / 6.283185307179586476925286766559005768L;
    const long double fraction = exact - std::floor(exact);
    turns.of_pair[pair] = static_cast<std::uint64_t>(std::min(fraction * 0x1p64L, 18446744073709551615.0L));
    if (pair / 8 >= fast_steps && std::fabs(reach_of(turns.of_pair[pair])) > kLongestReach) fast_steps = steps;
  }
  const std::int64_t pages = base_pages(tokens);
  auto* turns_out = static_cast<std::uint64_t*>(memory);
  // All parts are multiples of 16 bytes.
  auto* key_angles = reinterpret_cast<std::uint32_t*>(turns_out + head_dim / 2);
  auto* ratios = key_angles + key_angle_words(head_dim);
  auto* base_angles = ratios + ratio_words(head_dim);
  const std::int64_t threads = std::max(pages * base_angle_words(head_dim) / 4, key_angle_words(head_dim) / 4);
  rope_kernel<<<static_cast<unsigned>(layout::div_up(threads, 256)), 256, 0, stream>>>(
      turns, head_dim, fast_steps, pages, turns_out, key_angles, ratios, base_angles);
  tables = {turns_out, key_angles, ratios, base_angles, fast_steps, pages * layout::kPageTokens};
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace kvq::cuda
