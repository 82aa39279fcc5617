// Rotates values and finds their ranges, a block a token; then rounds head vectors, a warp each.
#include <kvq/kernels/cuda/round_blocks.h>

#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/cuda/decode_shared.cuh>
#include <kvq/kernels/cuda/float_order.cuh>

namespace kvq::cuda {

namespace {

constexpr int kRoundWarps = 8;  ///< tokens of a block
constexpr int kRangeThreads = 256;

/// mix_blocks() of lib/vector: (a, b) -> (a + b, a - b) on channels 1, 2, 4, … apart, within blocks.
__device__ void mix(float* row, int width, int block) {
  __syncthreads();
  for (int step = 1; step < block; step *= 2) {
    for (int pair = static_cast<int>(threadIdx.x); pair < width / 2; pair += kRangeThreads) {
      const int at = pair / step * 2 * step + pair % step;
      const float low = row[at], high = row[at + step];
      row[at] = __fadd_rn(low, high), row[at + step] = __fsub_rn(low, high);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kRangeThreads)
    rotate_back_kernel(float* x, int width, int block, const float* factors) {
  extern __shared__ float row[];
  float* own = x + static_cast<std::int64_t>(blockIdx.x) * width;
  for (int channel = static_cast<int>(threadIdx.x); channel < width; channel += kRangeThreads)
    row[channel] = own[channel];
  mix(row, width, block);
  for (int channel = static_cast<int>(threadIdx.x); channel < width; channel += kRangeThreads)
    own[channel] = __fmul_rn(row[channel], __ldg(factors + channel));
}

/// Shared memory for a row of `width` floats.
template <typename Kernel>
bool allow_row(Kernel kernel, int width, int& bytes) {
  bytes = width * static_cast<int>(sizeof(float));
  return bytes <= 48 * 1024 ||
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess;
}

/// One token of values: rotated in place in shared memory, written out, and its range.
__global__ void __launch_bounds__(kRangeThreads) range_kernel(const __grid_constant__ RoundBlocks a) {
  extern __shared__ float row[];
  __shared__ std::int32_t extremes[2][kRangeThreads / 32];
  const RoundTables& tables = a.value_tables;
  const int width = a.kv_heads * a.head_dim, thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * width;
  const bool rotates = tables.rotation != nullptr;
  for (int channel = thread; channel < width; channel += kRangeThreads) {
    const float x = load_number(a.value, first + channel, static_cast<int>(a.type));
    row[channel] = rotates ? __fmul_rn(x, __ldg(tables.rotation + channel)) : x;
  }
  mix(row, width, rotates ? tables.rotation_block : 1);
  std::int32_t highest = kLowest, lowest = kHighest;
  for (int channel = thread; channel < width; channel += kRangeThreads) {
    const float x = row[channel];
    if (a.rounded_value.x != nullptr) a.rounded_value.x[first + channel] = x;
    highest = max(highest, order_key(x)), lowest = min(lowest, order_key(x));
  }
  highest = __reduce_max_sync(~0u, highest), lowest = __reduce_min_sync(~0u, lowest);
  if (lane == 0) extremes[0][thread / 32] = highest, extremes[1][thread / 32] = lowest;
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 0; warp < kRangeThreads / 32; ++warp)
    highest = max(highest, extremes[0][warp]), lowest = min(lowest, extremes[1][warp]);
  const HalfRange range = half_range(number_of_key(lowest), number_of_key(highest), tables.exponent);
  const float from_stored = power_of_two(tables.exponent);
  a.value_ranges[2 * blockIdx.x] = __fmul_rn(half_bits_to_float(range.zero), from_stored);
  a.value_ranges[2 * blockIdx.x + 1] = __fmul_rn(half_bits_to_float(range.scale), from_stored);
}

/// A head vector of a warp: position 32 · i + lane is slot i of the lane.
template <int kSlots>
class RoundWarp {
 public:
  __device__ RoundWarp(const RoundBlocks& a, bool values, std::int64_t token, int kv_head, const float* books)
      : tables_(values ? a.value_tables : a.key_tables),
        out_(values ? a.rounded_value : a.rounded_key),
        dim_(a.head_dim),
        lane_(static_cast<int>(threadIdx.x) & 31),
        head_(kv_head * a.head_dim),
        first_((token * a.kv_heads + kv_head) * a.head_dim),
        boundaries_(books),
        decoded_(books + tables_.books * kRowLevels),
        to_stored_(power_of_two(-tables_.exponent)),
        from_stored_(power_of_two(tables_.exponent)) {
    const float zero = values ? a.value_ranges[2 * token] : 0.0f, scale = values ? a.value_ranges[2 * token + 1] : 0.0f;
    const void* numbers = values ? a.value : a.key;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int position = 32 * i + lane_;
      channel_[i] = position < dim_ ? __ldg(tables_.order + head_ + position) : 0;
      const int channel = head_ + channel_[i];
      x_[i] = values && out_.x != nullptr ? out_.x[first_ + channel_[i]]
                                          : load_number(numbers, first_ + channel_[i], static_cast<int>(a.type));
      y_[i] = x_[i];
      zero_[i] = values ? zero : __ldg(tables_.zero + channel);
      scale_[i] = values ? scale : __ldg(tables_.scale + channel);
      inverse_[i] = values ? inverse_of(scale) : __ldg(tables_.inverse + channel);
      book_[i] = __ldg(tables_.book + channel);
      masked_[i] = !values && tables_.lower != nullptr && position < dim_ &&
                   (x_[i] < __ldg(tables_.lower + channel) || x_[i] > __ldg(tables_.upper + channel));
    }
  }

  __device__ void run() {
    feed_back();
    if (tables_.icm > 0) descend();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (32 * i + lane_ >= dim_) continue;
      out_.codes[first_ + channel_[i]] = masked_[i] ? 0 : static_cast<std::uint8_t>(code_[i]);
      if (masked_[i]) out_.exact[first_ + channel_[i]] = exact_[i];
    }
  }

 private:
  /// Rounds `target` of slot i of lane `owner`, known to that lane; what is restored, in all lanes.
  __device__ float round(int i, int owner, float target) {
    const float x = __shfl_sync(~0u, target, owner);
    if (__shfl_sync(~0u, static_cast<int>(masked_[i]), owner)) {
      const std::uint16_t half = __half_as_ushort(__float2half_rn(__fmul_rn(x, to_stored_)));
      if (lane_ == owner) exact_[i] = half;
      return __fmul_rn(half_bits_to_float(half), from_stored_);
    }
    const float zero = __shfl_sync(~0u, zero_[i], owner), inverse = __shfl_sync(~0u, inverse_[i], owner);
    const float scale = __shfl_sync(~0u, scale_[i], owner);
    const int book = __shfl_sync(~0u, book_[i], owner);
    const float x_hat = __fmul_rn(__fsub_rn(x, zero), inverse);
    const float* boundaries = boundaries_ + book * kRowLevels;
    int code = __popc(__ballot_sync(~0u, boundaries[lane_] < x_hat));
    const int most = __ldg(tables_.most_boundaries + book);
    for (int begin = 32; begin < most; begin += 32)
      code += __popc(__ballot_sync(~0u, boundaries[begin + lane_] < x_hat));
    if (lane_ == owner) code_[i] = code;
    return __fadd_rn(zero, __fmul_rn(scale, decoded_[book * kRowLevels + code]));
  }

  __device__ const float* row_of(const float* matrix, int position) const {
    return matrix + (static_cast<std::int64_t>(head_) + position) * dim_;
  }
  __device__ void load_row(const float* row, float (&weights)[kSlots]) const {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) weights[i] = 32 * i + lane_ < dim_ ? __ldg(row + 32 * i + lane_) : 0.0f;
  }

  __device__ void feed_back() {
    const bool feedback = tables_.updates != nullptr;
    float next[kSlots] = {};
    if (feedback) load_row(row_of(tables_.updates, 0), next);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
#pragma unroll 1
      for (int owner = 0; owner < 32 && 32 * i + owner < dim_; ++owner) {
        const int position = 32 * i + owner;
        float weights[kSlots];
#pragma unroll
        for (int k = 0; k < kSlots; ++k) weights[k] = next[k];
        if (feedback && position + 1 < dim_) load_row(row_of(tables_.updates, position + 1), next);
        const float restored = round(i, owner, y_[i]);
        if (lane_ == owner) restored_[i] = restored;
        if (!feedback) continue;
        const float error = __fsub_rn(__shfl_sync(~0u, y_[i], owner), restored);
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          if (32 * k + lane_ > position) y_[k] = __fsub_rn(y_[k], __fmul_rn(weights[k], error));
        }
      }
    }
  }

  /// residual -= row of the matrix · change.
  __device__ void subtract(const float (&weights)[kSlots], float change, float (&residual)[kSlots]) const {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) residual[k] = __fsub_rn(residual[k], __fmul_rn(weights[k], change));
  }

  __device__ void descend() {
    float residual[kSlots] = {}, weights[kSlots], next[kSlots], diagonal[kSlots];
    load_row(row_of(tables_.hessian, 0), next);
    load_row(tables_.inverse_diagonal + head_, diagonal);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const float change = __fsub_rn(restored_[i], x_[i]);
#pragma unroll 1
      for (int owner = 0; owner < 32 && 32 * i + owner < dim_; ++owner) {
        const int position = 32 * i + owner;
#pragma unroll
        for (int k = 0; k < kSlots; ++k) weights[k] = next[k];
        if (position + 1 < dim_) load_row(row_of(tables_.hessian, position + 1), next);
        subtract(weights, __shfl_sync(~0u, change, owner), residual);
      }
    }
#pragma unroll 1
    for (int pass = 0; pass < tables_.icm; ++pass) {
      load_row(row_of(tables_.hessian, dim_ - 1), next);
#pragma unroll
      for (int i = kSlots - 1; i >= 0; --i) {
#pragma unroll 1
        for (int owner = min(31, dim_ - 1 - 32 * i); owner >= 0; --owner) {
          const int position = 32 * i + owner;
#pragma unroll
          for (int k = 0; k < kSlots; ++k) weights[k] = next[k];
          if (position > 0) load_row(row_of(tables_.hessian, position - 1), next);
          const float before = __shfl_sync(~0u, restored_[i], owner);
          const float restored = round(i, owner, __fadd_rn(restored_[i], __fmul_rn(residual[i], diagonal[i])));
          if (lane_ == owner) restored_[i] = restored;
          const float change = __fsub_rn(restored, before);
          if (change != 0.0f) subtract(weights, change, residual);
        }
      }
    }
  }

  const RoundTables& tables_;
  const RoundedTokens& out_;
  int dim_, lane_, head_;
  std::int64_t first_;
  const float *boundaries_, *decoded_;
  float to_stored_, from_stored_;
  float x_[kSlots], y_[kSlots], restored_[kSlots] = {}, zero_[kSlots], scale_[kSlots], inverse_[kSlots];
  int channel_[kSlots], book_[kSlots], code_[kSlots] = {};
  bool masked_[kSlots];
  std::uint16_t exact_[kSlots] = {};
};

/// grid: (tokens / kRoundWarps, kv heads, sides)
template <int kSlots>
__global__ void __launch_bounds__(kRoundWarps * 32) round_kernel(const __grid_constant__ RoundBlocks a) {
  extern __shared__ float books[];
  const bool values = blockIdx.z != 0;
  const RoundTables& tables = values ? a.value_tables : a.key_tables;
  if (!tables.rounds) return;
  for (int at = static_cast<int>(threadIdx.x); at < tables.books * kRowLevels; at += kRoundWarps * 32) {
    books[at] = __ldg(tables.boundaries + at);
    books[tables.books * kRowLevels + at] = __ldg(tables.decoded + at);
  }
  __syncthreads();
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kRoundWarps + threadIdx.x / 32;
  if (token >= a.tokens) return;
  RoundWarp<kSlots>(a, values, token, static_cast<int>(blockIdx.y), books).run();
}

template <int kSlots>
Status launch_round(const RoundBlocks& a, Stream stream) {
  const int most_books = a.key_tables.books > a.value_tables.books ? a.key_tables.books : a.value_tables.books;
  const int bytes = 2 * most_books * kRowLevels * static_cast<int>(sizeof(float));
  if (bytes > 48 * 1024 &&
      cudaFuncSetAttribute(round_kernel<kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return Status::TooMuchSharedMemory;
  }
  const dim3 grid(static_cast<unsigned>(layout::div_up(a.tokens, kRoundWarps)), static_cast<unsigned>(a.kv_heads), 2);
  round_kernel<kSlots><<<grid, kRoundWarps * 32, bytes, stream>>>(a);
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace

Status round_blocks(const RoundBlocks& a, Stream stream) {
  if (a.tokens == 0) return Status::Ok;
  if (a.head_dim > 256) return Status::UnsupportedHeadDim;
  if (a.value_tables.rounds) {
    int bytes = 0;
    if (!allow_row(range_kernel, a.kv_heads * a.head_dim, bytes)) return Status::TooMuchSharedMemory;
    range_kernel<<<static_cast<unsigned>(a.tokens), kRangeThreads, bytes, stream>>>(a);
    if (cudaGetLastError() != cudaSuccess) return Status::LaunchFailed;
  }
  if (a.head_dim <= 64) return launch_round<2>(a, stream);
  if (a.head_dim <= 128) return launch_round<4>(a, stream);
  return launch_round<8>(a, stream);
}

Status rotate_back(float* x, std::int64_t rows, int heads, int head_dim, int block, const float* factors,
                   Stream stream) {
  if (rows == 0) return Status::Ok;
  int bytes = 0;
  if (!allow_row(rotate_back_kernel, heads * head_dim, bytes)) return Status::TooMuchSharedMemory;
  rotate_back_kernel<<<static_cast<unsigned>(rows), kRangeThreads, bytes, stream>>>(x, heads * head_dim, block,
                                                                                    factors);
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace kvq::cuda
