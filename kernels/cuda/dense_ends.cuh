#pragma once
// What a dense warp does once: before its pages, tables and queries in the kernel's forms, and the sinks; after them,
// its share of the output.

#include <kvq/kernels/cuda/dense_warp.cuh>

namespace kvq::cuda {

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::prepare() {
  const int kv_head = share_.first_head + head_;
  const float* zero = params_.key_zero + kv_head * kDim;
  const float* scale = params_.key_scale + kv_head * kDim;
  // The queries as floats, where their rotated forms come later.
  auto* plain = reinterpret_cast<float*>(rotated_);
  const std::int64_t query_base =
      (static_cast<std::int64_t>(share_.sequence) * params_.heads + kv_head * params_.queries) * kDim;
  float plain_max = 0.0f;
#pragma unroll 4
  for (int index = lane_; index < queries_ * kDim; index += 32) {
    const float number = index < params_.queries * kDim
                             ? load_number(params_.query, query_base + index, params_.query_type) * params_.score_scale
                             : 0.0f;
    plain[index] = number;
    plain_max = fmaxf(plain_max, fabsf(number));
  }
  for (int step = 1; step < 32; step <<= 1) plain_max = fmaxf(plain_max, __shfl_xor_sync(~0u, plain_max, step));
  correction_unit_ = power_above(plain_max);
  __syncwarp();

  // Beside them the queries times the unit of their pair. Rolled loops: this code runs once, and comes from afar.
  float* scaled = plain + queries_ * kDim;
  auto* ranges = reinterpret_cast<uint4*>(shared_ + params_.plan.ranges) + head_ * kSteps * 4;
  float query_max = 0.0f;
#pragma unroll 2
  for (int step = 0; step < kSteps; ++step) {
    float scales[2][2], zeros[2][2], inverse[2];  // [channel of the lane][of the pair]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = 8 * step + t_ + 4 * i;
#pragma unroll
      for (int partner = 0; partner < 2; ++partner) {
        scales[i][partner] = __ldg(scale + pair + partner * kPairs);
        zeros[i][partner] = __ldg(zero + pair + partner * kPairs);
      }
      const float unit =
          power_above(fmaxf(fabsf(zeros[i][0]) + fabsf(scales[i][0]), fabsf(zeros[i][1]) + fabsf(scales[i][1])));
      inverse[i] = 1.0f / unit;
#pragma unroll
      for (int partner = 0; partner < 2; ++partner) {
        const int at = query_ * kDim + pair + partner * kPairs;
        const float number = plain[at] * unit;
        scaled[at] = number;
        query_max = fmaxf(query_max, fabsf(number));
      }
    }
    if (slot_ == 0 && g_ == 0) {
      ranges[step * 4 + t_] = {pack_halves(scales[0][0] * inverse[0], scales[1][0] * inverse[1]),
                               pack_halves(zeros[0][0] * inverse[0], zeros[1][0] * inverse[1]),
                               pack_halves(scales[0][1] * inverse[0], scales[1][1] * inverse[1]),
                               pack_halves(zeros[0][1] * inverse[0], zeros[1][1] * inverse[1])};
    }
  }
  __syncwarp();
  for (int step = 1; step < 4; step <<= 1) query_max = fmaxf(query_max, __shfl_xor_sync(~0u, query_max, step));
  const float unit = power_above(query_max), to_unit_query = 1.0f / unit;
  const int column = 2 * t_ % queries_;
  unit0_ = __shfl_sync(~0u, unit, column * 4);
  unit1_ = __shfl_sync(~0u, unit, column * 4 + 4);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const float* own = scaled + query_ * kDim + 8 * step + t_;
    query_pairs_[step][0] = pack_halves(own[0] * to_unit_query, own[4] * to_unit_query);
    query_pairs_[step][1] = pack_halves(own[kPairs] * to_unit_query, own[kPairs + 4] * to_unit_query);
  }

  for (int index = lane_; index < kDim * queries_; index += 32) extra_output_[index] = 0.0f;
  if (params_.page.key.varying_outliers && slot_ == 0) {
    auto* units = reinterpret_cast<float*>(shared_ + params_.plan.head_units);
    if (lane_ == 0) units[head_] = correction_unit_ * params_.key_unit;
    auto* queries = reinterpret_cast<__half*>(shared_ + params_.plan.outlier_query) + head_ * kDim * queries_;
    auto* code_zero = reinterpret_cast<float*>(shared_ + params_.plan.code_zero) + head_ * kDim;
    const float first = __ldg(params_.key_decoded + ((params_.key_books > 1 ? kv_head : 0) << key_bits()));
    const float to_unit = 1.0f / correction_unit_;
#pragma unroll 4
    for (int channel = lane_; channel < kDim; channel += 32) {
      code_zero[channel] = (__ldg(zero + channel) + __ldg(scale + channel) * first) * correction_unit_;
      for (int query = 0; query < queries_; ++query) {
        queries[channel * queries_ + query] = __float2half_rn(plain[query * kDim + channel] * to_unit);
      }
    }
  }
  __syncwarp();
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::attend_to_sinks() {
  const int kv_head = share_.first_head + head_, count = min(params_.sinks, share_.length);
  const std::int64_t width = static_cast<std::int64_t>(params_.page.key.kv_heads) * kDim;
  const std::int64_t query_base =
      (static_cast<std::int64_t>(share_.sequence) * params_.heads + kv_head * params_.queries) * kDim;
#pragma unroll 1
  for (int sink = 0; sink < count; ++sink) {
    const std::int64_t base =
        share_.sequence * params_.sink_stride + sink * width + kv_head * kDim;
#pragma unroll 1
    for (int query = 0; query < params_.queries; ++query) {
      float product = 0.0f;
      for (int pair = lane_; pair < kPairs; pair += 32) {
        const float2 angle = cos_sin_of(turn_fraction(params_.turns[pair], sink));
        const float first = half_bits_to_float(params_.sink_keys[base + pair]);
        const float second = half_bits_to_float(params_.sink_keys[base + pair + kPairs]);
        const std::int64_t at = query_base + query * kDim + pair;
        product += load_number(params_.query, at, params_.query_type) * (first * angle.x - second * angle.y) +
                   load_number(params_.query, at + kPairs, params_.query_type) * (second * angle.x + first * angle.y);
      }
      for (int step = 1; step < 32; step <<= 1) product += __shfl_xor_sync(~0u, product, step);
      const float score = product * params_.score_scale * params_.key_unit;
      // Lane t = query / 2 of every g holds the sums of this query, in its even or odd column.
      const int owner = query >> 1;
      const float before = __shfl_sync(~0u, query & 1 ? largest1_ : largest0_, owner);
      const float largest = fmaxf(before, score);
      const float fade = exp2_fast(before - largest), weight = exp2_fast(score - largest);
      for (int channel = lane_; channel < kDim; channel += 32) {
        float& sum = extra_output_[channel * queries_ + query];
        sum = sum * fade + weight * half_bits_to_float(params_.sink_values[base + channel]);
      }
      if (2 * t_ % queries_ == (query & ~1)) {
        float& total = query & 1 ? sum1_ : sum0_;
        total = total * fade + (g_ == 0 ? weight : 0.0f);
        (query & 1 ? largest1_ : largest0_) = largest;
      }
    }
  }
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::write_partial() {
  for (int step = 4; step < 32; step <<= 1) {
    sum0_ += __shfl_xor_sync(~0u, sum0_, step), sum1_ += __shfl_xor_sync(~0u, sum1_, step);
    zeros0_ += __shfl_xor_sync(~0u, zeros0_, step), zeros1_ += __shfl_xor_sync(~0u, zeros1_, step);
  }
  const int parts = params_.splits * params_.plan.pages_in_flight;
  const int part = static_cast<int>(blockIdx.x) * params_.plan.pages_in_flight + slot_;
  const std::int64_t first_query =
      static_cast<std::int64_t>(share_.sequence) * params_.heads + (share_.first_head + head_) * params_.queries;
  if (2 * t_ >= queries_) return;
  const float unit = 1.0f / weight_unit_;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int query = 2 * t_ + odd;
    if (query >= params_.queries) continue;
    const std::int64_t at = (first_query + query) * parts + part;
    if (g_ == 0) params_.normals[at] = odd ? make_float2(largest1_, sum1_) : make_float2(largest0_, sum0_);
    float* partial = params_.partials + at * kDim;
    const float zeros = odd ? zeros1_ : zeros0_;
#pragma unroll
    for (int tile = 0; tile < kSteps; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int channel = 16 * tile + g_ + 8 * r;
        partial[channel] = output_[tile][2 * r + odd] * unit + zeros + extra_output_[channel * queries_ + query];
      }
    }
  }
}

}  // namespace kvq::cuda
