#pragma once
// Keys of PageAppend. Included by page_append.cuh.

namespace kvq::cuda {

/// Leaves `cap` marks: the largest excess, ties to the lower channel. Rare, so every mark is compared with all others.
template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::keep_largest_excess(const float (&x)[kPerThread], unsigned& marks,
                                                                      int cap) {
  unsigned keep = 0;
  int better[kPerThread] = {};
  float own[kPerThread];
  for (int i = 0; i < kPerThread; ++i) {
    const int channel = first_channel_ + i;
    own[i] = -1.0f;
    if (!(marks >> i & 1u)) continue;
    const float lower = tables_.lower[channel], upper = tables_.upper[channel];
    const float scale = __fsub_rn(__fmul_rn(0.5f, upper), __fmul_rn(0.5f, lower)), inverse = inverse_of(scale);
    const float beyond = x[i] < lower ? __fsub_rn(lower, x[i]) : __fsub_rn(x[i], upper);
    own[i] = inverse > 0.0f ? __fmul_rn(beyond, inverse) : INFINITY;
  }
  auto* window = reinterpret_cast<float*>(next_totals());  // [warps]: what the threads of one lane have to show
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kPerThread; ++i) {
      __syncthreads();
      if (lane_ == lane) window[warp_] = own[i];
      __syncthreads();
      for (int warp = 0; warp < warps_; ++warp) {
        const float other = window[warp];
        const int channel = (warp * 32 + lane) * kPerThread + i;
        for (int k = 0; k < kPerThread; ++k) {
          if (other > own[k] || (other == own[k] && channel < first_channel_ + k)) ++better[k];
        }
      }
    }
  }
  __syncthreads();
  for (int i = 0; i < kPerThread; ++i) {
    if ((marks >> i & 1u) && better[i] < cap) keep |= 1u << i;
  }
  marks = keep;
}

template <int kPerThread, bool kRounded>
__device__ void PageAppend<kPerThread, kRounded>::append_key(const float (&x)[kPerThread], std::int64_t row, int slot) {
  const bool varying = shape_.varying_outliers;
  unsigned marks = 0;
#pragma unroll
  for (int i = 0; i < kPerThread && varying; ++i) {
    if (mine(i) && (x[i] < lower_[i] || x[i] > upper_[i])) marks |= 1u << i;
  }
  if (varying) {
    int total = 0;
    int before = sum_before(__popc(marks), total);
    const int cap = tables_.outlier_cap > 0 ? tables_.outlier_cap : width_;
    if (total > cap) {
      keep_largest_excess(x, marks, cap);
      before = sum_before(__popc(marks), total);
    }
    gather(x, marks, before, total, row, slot);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (!mine(i)) continue;
    if (chosen()) {
      append_code(i, slot, rounded_.codes[row * width_ + first_channel_ + i]);
      continue;
    }
    const float x_hat = __fmul_rn(__fsub_rn(x[i], zero_[i]), inverse_[i]);
    append_code(i, slot, marks >> i & 1u ? 0 : code_of(first_channel_ + i, x_hat));
  }
}

}  // namespace kvq::cuda
