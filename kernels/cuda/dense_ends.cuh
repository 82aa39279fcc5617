#pragma once
// What a dense warp does once: before its pages, tables and queries in the kernel's forms, and the sinks; after them,
// its share of the output.

#include <kvq/kernels/cuda/dense_warp.cuh>

namespace kvq::cuda {

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::prepare() {
  const int kv_head = share_.first_head + head_, heads = params_.plan.heads;
  const float* zero = params_.key_zero + kv_head * kDim;
  const float* scale = params_.key_scale + kv_head * kDim;
  // Lane (g, t): query g / 2; of the pairs of a step, number t for even g, t + 4 for odd.
  const int query = g_ >> 1, odd = g_ & 1;
  const bool there = query < share_.queries;
  const std::int64_t query_at = share_.query_at(params_, kv_head, there ? query : 0, kDim);
  float first[kSteps], second[kSteps], unit[kSteps], plain_max = 0.0f, scaled_max = 0.0f;
  auto* ranges = reinterpret_cast<__half*>(shared_ + params_.plan.ranges) + head_ * kSteps * 4 * 8;
  auto* code_zero = reinterpret_cast<float*>(shared_ + params_.plan.code_zero);
  const bool outliers = params_.page.key.varying_outliers;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int pair = 8 * step + t_ + 4 * odd;
    first[step] = load_number(params_.query, query_at + pair, params_.query_type);
    second[step] = load_number(params_.query, query_at + pair + kPairs, params_.query_type);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int pair = 8 * step + t_ + 4 * odd;
    first[step] *= there ? params_.score_scale : 0.0f, second[step] *= there ? params_.score_scale : 0.0f;
    const float zeros[2] = {__ldg(zero + pair), __ldg(zero + pair + kPairs)};
    const float scales[2] = {__ldg(scale + pair), __ldg(scale + pair + kPairs)};
    unit[step] = power_above(fmaxf(fabsf(zeros[0]) + fabsf(scales[0]), fabsf(zeros[1]) + fabsf(scales[1])));
    const float largest = fmaxf(fabsf(first[step]), fabsf(second[step]));
    plain_max = fmaxf(plain_max, largest);
    scaled_max = fmaxf(scaled_max, largest * unit[step]);
    if (slot_ == 0 && query == 0) {
      __half* to = ranges + (step * 4 + t_) * 8 + odd;
      const float inverse = 1.0f / unit[step];
      to[0] = __float2half_rn(scales[0] * inverse), to[2] = __float2half_rn(zeros[0] * inverse);
      to[4] = __float2half_rn(scales[1] * inverse), to[6] = __float2half_rn(zeros[1] * inverse);
    }
  }
  for (int step = 1; step < 8; step <<= 1) scaled_max = fmaxf(scaled_max, __shfl_xor_sync(~0u, scaled_max, step));
  for (int step = 1; step < 32; step <<= 1) plain_max = fmaxf(plain_max, __shfl_xor_sync(~0u, plain_max, step));
  const float query_unit = power_above(scaled_max), to_query_unit = 1.0f / query_unit;
  unit_ = __shfl_sync(~0u, query_unit, 8 * t_);

  for (int channel = lane_; channel < kValueWarps * kDim; channel += 32) extra_output_[channel] = {};
  if (slot_ != 0) return;
  auto* queries = reinterpret_cast<__half*>(shared_ + params_.plan.queries) + head_ * kSteps * kBlockQueries * 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    __half* to = queries + ((step * kBlockQueries + query) * 4 + t_) * 4 + odd;
    const float factor = unit[step] * to_query_unit;
    to[0] = __float2half_rn(first[step] * factor), to[2] = __float2half_rn(second[step] * factor);
  }
  if (!outliers) return;
  const float correction_unit = power_above(plain_max), to_unit = 1.0f / correction_unit;
  if (lane_ == 0) {
    reinterpret_cast<float*>(shared_ + params_.plan.head_units)[head_] = correction_unit * params_.key_unit;
  }
  auto* rows = reinterpret_cast<__half*>(shared_ + params_.plan.outlier_query);
  const float level = __ldg(params_.key_decoded + ((params_.key_books > 1 ? kv_head : 0) << key_bits()));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int pair = 8 * step + t_ + 4 * odd;
    const __half a = __float2half_rn(first[step] * to_unit), b = __float2half_rn(second[step] * to_unit);
    __half* row = rows + (pair * heads + head_) * kBlockQueries + query;
    row[0] = a, row[kPairs * heads * kBlockQueries] = b;
    if (query < 2) {
      const int channel = pair + query * kPairs;
      code_zero[channel * heads + head_] = (__ldg(zero + channel) + __ldg(scale + channel) * level) * correction_unit;
    }
  }
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::attend_to_sinks() {
  const int kv_head = share_.first_head + head_, count = min(params_.sinks, share_.length);
  const std::int64_t width = static_cast<std::int64_t>(params_.page.key.kv_heads) * kDim;
#pragma unroll 1
  for (int sink = 0; sink < count; ++sink) {
    const std::int64_t base = share_.sequence * params_.sink_stride + sink * width + kv_head * kDim;
#pragma unroll 1
    for (int query = 0; query < share_.queries; ++query) {
      const std::int64_t query_at = share_.query_at(params_, kv_head, query, kDim);
      float product = 0.0f;
      for (int pair = lane_; pair < kPairs; pair += 32) {
        const float2 angle = cos_sin_of(turn_fraction(params_.turns[pair], sink));
        const float first = half_bits_to_float(params_.sink_keys[base + pair]);
        const float second = half_bits_to_float(params_.sink_keys[base + pair + kPairs]);
        product +=
            load_number(params_.query, query_at + pair, params_.query_type) * (first * angle.x - second * angle.y) +
            load_number(params_.query, query_at + pair + kPairs, params_.query_type) *
                (second * angle.x + first * angle.y);
      }
      for (int step = 1; step < 32; step <<= 1) product += __shfl_xor_sync(~0u, product, step);
      const float score = product * params_.score_scale * params_.key_unit;
      const float before = __shfl_sync(~0u, largest_, query);
      const float largest = fmaxf(before, score);
      const float fade = exp2_fast(before - largest), weight = exp2_fast(score - largest);
      for (int channel = lane_; channel < kDim; channel += 32) {
        float& sum = reinterpret_cast<float*>(extra_output_ + channel)[query];
        sum = sum * fade + weight * half_bits_to_float(params_.sink_values[base + channel]);
      }
      if (t_ == query) {
        sum_ = sum_ * fade + (g_ == 0 ? weight : 0.0f);
        largest_ = largest;
      }
    }
  }
  __syncwarp();
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::write_partial() {
  for (int step = 4; step < 32; step <<= 1) {
    sum_ += __shfl_xor_sync(~0u, sum_, step);
    zeros_ += __shfl_xor_sync(~0u, zeros_, step);
  }
  const int parts = params_.splits * params_.plan.pages_in_flight;
  const int part = static_cast<int>(blockIdx.x) * params_.plan.pages_in_flight + slot_;
  const int first_query = share_.first_query + (share_.first_head + head_) * params_.queries;
  const std::int64_t row = static_cast<std::int64_t>(share_.sequence) * params_.heads + first_query;
  if (g_ == 0 && t_ < share_.queries) params_.normals[(row + t_) * parts + part] = make_float2(largest_, sum_);
  const float unit = 1.0f / weight_unit_;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int query = (2 * t_ & 3) + odd;
    const float zeros = __shfl_sync(~0u, zeros_, query);
    if (t_ >= 2 || query >= share_.queries) continue;
    float* partial = params_.partials + ((row + query) * parts + part) * kDim;
#pragma unroll
    for (int tile = 0; tile < kSteps; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int channel = 16 * tile + g_ + 8 * r;
        float sum = output_[tile][2 * r + odd] * unit + zeros;
#pragma unroll
        for (int copy = 0; copy < kValueWarps; ++copy)
          sum += reinterpret_cast<const float*>(extra_output_ + copy * kDim + channel)[query];
        partial[channel] = sum;
      }
    }
  }
}

}  // namespace kvq::cuda
