#pragma once
// What is done once: before the pages, tables of the head in the kernel's forms, and the exact first tokens; after
// them, a warp's share of the output, the block's, and the head's. Included by head_warp.cuh.

namespace kvq::cuda {

template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::prepare() {
  const float* zero = params_.key_zero + share_.kv_head * kDim;
  const float* scale = params_.key_scale + share_.kv_head * kDim;
  // Lane (g, t): query g / 2; of the pairs of a step, number t for even g, t + 4 for odd.
  const int query = g_ >> 1, odd = g_ & 1;
  const bool there = query < share_.queries;
  const std::int64_t query_at = share_.query_row(params_, there ? query : 0) * kDim;
  float first[kSteps], second[kSteps], unit[kSteps], plain_max = 0.0f, scaled_max = 0.0f;
  auto* ranges = reinterpret_cast<__half*>(shared_ + params_.plan.ranges);
  const int own = t_ + 4 * odd;
  load_numbers(
      params_.query, params_.query_type, [&](int step) { return query_at + own + 8 * step; }, first);
  load_numbers(
      params_.query, params_.query_type, [&](int step) { return query_at + own + 8 * step + kPairs; }, second);
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
    if (query == 0) {
      __half* to = ranges + (step * 4 + t_) * 8 + odd;
      const float inverse = inverse_power(unit[step]);
      to[0] = __float2half_rn(scales[0] * inverse), to[2] = __float2half_rn(zeros[0] * inverse);
      to[4] = __float2half_rn(scales[1] * inverse), to[6] = __float2half_rn(zeros[1] * inverse);
    }
  }
  for (int step = 1; step < 8; step <<= 1) {
    scaled_max = fmaxf(scaled_max, __shfl_xor_sync(~0u, scaled_max, step));
    plain_max = fmaxf(plain_max, __shfl_xor_sync(~0u, plain_max, step));
  }
  const float query_unit = power_above(scaled_max), to_query_unit = inverse_power(query_unit);
  const float plain_unit = power_above(plain_max), to_plain_unit = inverse_power(plain_unit);
  if ((lane_ & 7) == 0) {
    // Outliers of keys are worked on as stored, times 1/4, so that no sum of two leaves fp16.
    reinterpret_cast<float2*>(shared_ + params_.plan.units)[query] =
        make_float2(query_unit, 4.0f * params_.key_unit * plain_unit);
  }
  auto* queries = reinterpret_cast<__half*>(shared_ + params_.plan.queries);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    __half* to = queries + ((step * kBlockQueries + query) * 4 + t_) * 4 + odd;
    const float factor = unit[step] * to_query_unit;
    to[0] = __float2half_rn(first[step] * factor), to[2] = __float2half_rn(second[step] * factor);
  }
  if (!params_.page.key.has_outliers()) return;
  // Of a channel: the queries there, then what they have in the pair's other channel, with the sign of the rotation.
  auto* rows = reinterpret_cast<__half*>(shared_ + params_.plan.key_rows);
  auto* turns = reinterpret_cast<uint2*>(shared_ + params_.plan.key_turns);
  const float* levels = params_.key_decoded + key_book();
  const float to_stored = inverse_power(params_.key_unit);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int pair = 8 * step + t_ + 4 * odd;
    const __half a = __float2half_rn(first[step] * to_plain_unit), b = __float2half_rn(second[step] * to_plain_unit);
    rows[pair * 8 + query] = a, rows[pair * 8 + 4 + query] = b;
    rows[(pair + kPairs) * 8 + query] = b, rows[(pair + kPairs) * 8 + 4 + query] = __hneg(a);
    if (query < 2) {
      // 48 bits of turns per position, and what code 0 stands for.
      const int channel = pair + query * kPairs;
      const std::uint64_t turn = params_.turns[pair];
      float level = __ldg(levels);
      if constexpr (kOwn) level = __ldg(levels + params_.key_rows[share_.kv_head * kDim + channel].first_level());
      const float code_zero = (__ldg(zero + channel) + __ldg(scale + channel) * level) * to_stored;
      turns[channel] =
          make_uint2(static_cast<std::uint32_t>(turn >> 32),
                     (static_cast<std::uint32_t>(turn) & 0xffff0000u) | __half_as_ushort(__float2half_rn(code_zero)));
    }
  }
}

/// Keys are (zero + scale * x, both of a pair) rotated by 8 g + r: a linear map of x, r = 0 and r = 1, and its
/// constant.
template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::prepare_fast_step(int step) {
  const uint4 angle = __ldg(reinterpret_cast<const uint4*>(params_.key_angles) + step * 32 + lane_);
  const float* zero = params_.key_zero + share_.kv_head * kDim;
  const float* scale = params_.key_scale + share_.kv_head * kDim;
  float zeros[2][2], scales[2][2];  // [which pair][which channel]
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int pair = 8 * step + t_ + 4 * which;
    zeros[which][0] = __ldg(zero + pair), zeros[which][1] = __ldg(zero + pair + kPairs);
    scales[which][0] = __ldg(scale + pair), scales[which][1] = __ldg(scale + pair + kPairs);
    const float inverse = inverse_power(power_above(
        fmaxf(fabsf(zeros[which][0]) + fabsf(scales[which][0]), fabsf(zeros[which][1]) + fabsf(scales[which][1]))));
    for (int channel = 0; channel < 2; ++channel) zeros[which][channel] *= inverse, scales[which][channel] *= inverse;
  }
  uint4 words[3];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t cosine = r ? angle.z : angle.x, sine = r ? angle.w : angle.y;
    const float c[2] = {low_float(cosine), high_float(cosine)}, s[2] = {low_float(sine), high_float(sine)};
    words[r] = {
        pack_halves(scales[0][0] * c[0], scales[1][0] * c[1]), pack_halves(-scales[0][1] * s[0], -scales[1][1] * s[1]),
        pack_halves(scales[0][1] * c[0], scales[1][1] * c[1]), pack_halves(scales[0][0] * s[0], scales[1][0] * s[1])};
    const std::uint32_t first =
        pack_halves(zeros[0][0] * c[0] - zeros[0][1] * s[0], zeros[1][0] * c[1] - zeros[1][1] * s[1]);
    const std::uint32_t second =
        pack_halves(zeros[0][1] * c[0] + zeros[0][0] * s[0], zeros[1][1] * c[1] + zeros[1][0] * s[1]);
    if (r) {
      words[2].z = first, words[2].w = second;
    } else {
      words[2].x = first, words[2].y = second;
    }
  }
  auto* map = reinterpret_cast<uint4*>(shared_ + params_.plan.angles + step * kMapBytes) + lane_;
#pragma unroll
  for (int i = 0; i < 3; ++i) map[32 * i] = words[i];
}

/// Before any page: what the warp's sums begin with.
template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::attend_to_sinks() {
  const int count = min(params_.sinks, share_.length);
  const std::int64_t width = static_cast<std::int64_t>(params_.page.key.kv_heads) * kDim;
  auto* share = reinterpret_cast<float*>(memory_ + params_.plan.scratch);
#pragma unroll 1
  for (int query = 0; query < share_.queries; ++query) {
    float largest = -1e30f, total = 0.0f;
    const std::int64_t query_at = share_.query_row(params_, query) * kDim;
    for (int channel = lane_; channel < kDim; channel += 32) share[channel] = 0.0f;
#pragma unroll 1
    for (int sink = 0; sink < count; ++sink) {
      const std::int64_t base = share_.sequence * params_.sink_stride + sink * width + share_.kv_head * kDim;
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
      const float score = product * params_.score_scale * params_.key_unit, higher = fmaxf(largest, score);
      const float fade = exp2_fast(largest - higher), weight = exp2_fast(score - higher);
      for (int channel = lane_; channel < kDim; channel += 32) {
        share[channel] = share[channel] * fade + weight * half_bits_to_float(params_.sink_values[base + channel]);
      }
      total = total * fade + weight;
      largest = higher;
    }
    __syncwarp();
    if (t_ == query) largest_ = largest, sum_ = g_ == 0 ? total : 0.0f;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      if ((2 * t_ & 3) + odd != query) continue;
#pragma unroll
      for (int tile = 0; tile < kSteps; ++tile) {
        output_[tile][odd] = share[16 * tile + g_], output_[tile][2 + odd] = share[16 * tile + g_ + 8];
      }
    }
    __syncwarp();
  }
}

/// `[4 queries][head_dim]` fp32 into the warp's memory, where codes were.
template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::write_share() {
  for (int step = 4; step < 32; step <<= 1) {
    sum_ += __shfl_xor_sync(~0u, sum_, step);
    zeros_ += __shfl_xor_sync(~0u, zeros_, step);
  }
  auto* shares = reinterpret_cast<float*>(memory_);
  if (g_ == 0) {
    reinterpret_cast<float2*>(shared_ + params_.plan.normals)[warp_ * kBlockQueries + t_] = make_float2(largest_, sum_);
  }
  const bool outliers = params_.page.value.has_outliers();
  __syncwarp();
  if (outliers) {
    const float unit = inverse_power(extra_unit_);
#pragma unroll
    for (int tile = 0; tile < kPairTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = 2 * (16 * tile + g_ + 8 * (i >> 1)) + (t_ >> 1), query = 2 * (t_ & 1) + (i & 1);
        if (channel < kDim) shares[query * kDim + channel] = extra_[tile][i] * unit;
      }
    }
  }
  __syncwarp();
  const float unit = inverse_power(weight_unit_);
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int query = (2 * t_ & 3) + odd;
    const float zeros = __shfl_sync(~0u, zeros_, query);
    if (t_ >= 2) continue;
#pragma unroll
    for (int tile = 0; tile < kSteps; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& share = shares[query * kDim + 16 * tile + g_ + 8 * r];
        const float sum = output_[tile][2 * r + odd] * unit + zeros;
        share = outliers ? share + sum : sum;
      }
    }
  }
}

/// Shares of a head's output, by warp or by block: sum of shares * 2^(largest - overall largest) / sum of weights.
/// `normals`: [parts][stride] of this query. `share_of(part)`.
template <typename ShareOf>
__device__ __forceinline__ float3 add_shares(const float2* normals, int parts, int stride, const ShareOf& share_of) {
  float largest = -1e30f, sum = 0.0f, weight = 0.0f;
  for (int part = 0; part < parts; ++part) largest = fmaxf(largest, normals[part * stride].x);
#pragma unroll 8
  for (int part = 0; part < parts; ++part) {
    const float2 own = normals[part * stride];
    const float factor = own.y > 0.0f ? exp2_fast(own.x - largest) : 0.0f;
    weight += factor * own.y;
    if (own.y > 0.0f) sum += factor * share_of(part);
  }
  return make_float3(largest, weight, sum);
}

/// The block's warps together; then, if the sequence is split, the blocks of the head: the last one to arrive does it.
template <int kDim>
__device__ void merge(const DecodeParams& params, const Share& share, char* shared) {
  const DecodePlan& plan = params.plan;
  const int threads = plan.threads(), splits = params.splits, split = static_cast<int>(blockIdx.x);
  const auto write = [&](int query, int channel, float sum, float weight) {
    store_number(params.output, share.query_row(params, query) * kDim + channel, params.output_type,
                 weight > 0.0f ? sum * params.value_unit / weight : 0.0f);
  };
  __syncthreads();
  const auto* normals = reinterpret_cast<const float2*>(shared + plan.normals);
  for (int item = threadIdx.x; item < share.queries * kDim; item += threads) {
    const int query = item / kDim, channel = item % kDim;
    const float3 sum = add_shares(normals + query, plan.warps, kBlockQueries, [&](int warp) {
      return reinterpret_cast<const float*>(shared + plan.warp_memory + warp * plan.warp_bytes)[item];
    });
    if (splits == 1) {
      write(query, channel, sum.z, sum.y);
      continue;
    }
    const std::int64_t row = share.query_row(params, query) * splits + split;
    params.partials[row * kDim + channel] = sum.z;
    if (channel == 0) params.normals[row] = make_float2(sum.x, sum.y);
  }
  if (splits == 1) return;

  __threadfence();
  __syncthreads();
  auto& last = *reinterpret_cast<int*>(shared + plan.last);
  if (threadIdx.x == 0) {
    std::uint32_t* arrived = params.arrived + static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    last = atomicAdd(arrived, 1u) == static_cast<unsigned>(splits) - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  // [query][split], where the tables were.
  auto* all = reinterpret_cast<float2*>(shared);
  for (int item = threadIdx.x; item < share.queries * splits; item += threads) {
    all[item] = __ldcg(params.normals + share.query_row(params, 0) * splits + item);
  }
  __syncthreads();
  for (int item = threadIdx.x; item < share.queries * kDim; item += threads) {
    const int query = item / kDim, channel = item % kDim;
    const float* partials = params.partials + share.query_row(params, query) * splits * kDim + channel;
    const float3 sum =
        add_shares(all + query * splits, splits, 1, [&](int part) { return __ldcg(partials + part * kDim); });
    write(query, channel, sum.z, sum.y);
  }
}

}  // namespace kvq::cuda
