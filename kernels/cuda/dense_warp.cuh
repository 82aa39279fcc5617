#pragma once
// The warps that decode a head's keys and values and attend to them. Per page of 64 tokens:
//
//   scores[64, queries] = keys . rotated queries       mma, A = keys: row = token, contraction over channels
//   online softmax in base 2, fp32
//   output[channel, queries] += values . weights       mma, A = values: row = channel, contraction over tokens
//
// RoPE. A token's position is group_base + 4 m + offset: the queries are rotated backwards by group_base + 4 m (four
// versions, renewed every second page), the keys forwards by offset, whose cos and sin come from a table. In a pair of
// channels (j, j + head_dim / 2) zeros and scales are divided by a power of two, which the queries are multiplied by,
// and so are the queries by a power of two per head: fp16 then holds numbers of at most 1 or 2, whatever the model.
//
// Weights are multiplied by the scale of their token's values and by a power of two that follows the largest such
// scale; zeros are summed apart, in fp32.

#include <kvq/kernels/cuda/code_lookup.cuh>
#include <kvq/kernels/cuda/decode_shared.cuh>

namespace kvq::cuda {

template <int kBits, int kDim>
class DenseWarp {
 public:
  __device__ DenseWarp(const DecodeParams& params, const Share& share, char* shared, int warp, int lane)
      : params_(params),
        share_(share),
        shared_(shared),
        barriers_(shared, params.plan),
        warp_(warp),
        lane_(lane),
        head_(warp % params.plan.heads),
        slot_(warp / params.plan.heads),
        g_(lane >> 2),
        t_(lane & 3),
        queries_(params.plan.queries),
        query_(g_ % params.plan.queries),
        keys_(shared + params.plan.key_codes + warp * kDim * key_row()),
        values_(shared + params.plan.value_codes + warp * kDim * value_row()),
        rotated_(shared + params.plan.rotated + warp * kSteps * 2 * params.plan.queries * 64),
        key_source_(static_cast<int>(params.page.key_parts.codes) + (share.first_head + head_) * kDim * key_row()),
        value_source_(static_cast<int>(params.page.value_parts.codes) +
                      (share.first_head + head_) * kDim * value_row()),
        extra_output_(reinterpret_cast<float*>(shared + params.plan.extra_output) + warp * kDim * params.plan.queries),
        key_column_(CodeLookup<kBits>::column(lane)),
        value_column_(CodeLookup<kBits>::column(lane) + 128) {}

  /// Before the block's first barrier: the first copies are under way while tables are built.
  __device__ void prefetch() {
    const int page = share_.first_page + slot_;
    if (page >= share_.end_page) return;
    const std::uint8_t* from = page_address(page);
    for (int half = 0; half < 2; ++half) {
      copy_keys(from, half);
      copy_values(from, half);
    }
  }

  /// Tables of this head that all its warps and the service warps read, and this warp's queries.
  __device__ void prepare();

  __device__ void run();

 private:
  static constexpr int kSteps = kDim / 16;  ///< of the contraction over channels; tiles of output channels
  static constexpr int kHalfSteps = kSteps / 2;
  static constexpr int kPairs = kDim / 2;
  /// Loops over steps and tiles unrolled and software-pipelined. Long loop bodies and large head_dim make code that
  /// does not fit the instruction cache (and nvcc 13.0's ptxas crashes on it).
  static constexpr bool kPipelined = (kBits == 2 || kBits == 3 || kBits == 4) && kSteps <= 8;

  __device__ int key_bits() const { return kBits ? kBits : params_.page.key.bits; }
  __device__ int value_bits() const { return kBits ? kBits : params_.page.value.bits; }
  __device__ int key_row() const { return 8 * key_bits(); }
  __device__ int value_row() const { return 8 * value_bits(); }
  __device__ const std::uint8_t* page_address(int page) const {
    return params_.pages + share_.block_table[page] * params_.page.bytes;
  }
  __device__ const char* tail(int index) const {
    return shared_ + params_.plan.tails + index % kTailBuffers * params_.plan.tail_bytes;
  }

  // Halves of a page's keys: steps before and after kHalfSteps, whose rows are pairs; of its values: rows.
  __device__ void copy_keys(const std::uint8_t* page, int half) {
    std::uint64_t* barrier = barriers_.dense(warp_, kKeysFull + half);
    const int bytes = 8 * (half ? kSteps - kHalfSteps : kHalfSteps) * key_row();
    const int first = half ? 8 * kHalfSteps * key_row() : 0, second = first + kPairs * key_row();
    const std::uint8_t* from = page + key_source_;
    if (kBulkCopies && lane_ != 0) return;
    copy_expect(barrier, 2 * bytes, lane_);
    warp_copy(keys_ + first, from + first, bytes, barrier, lane_);
    warp_copy(keys_ + second, from + second, bytes, barrier, lane_);
    copy_commit(barrier);
  }
  __device__ void copy_values(const std::uint8_t* page, int half) {
    std::uint64_t* barrier = barriers_.dense(warp_, kValuesFull + half);
    const int bytes = 16 * (half ? kSteps - kHalfSteps : kHalfSteps) * value_row();
    const int first = half ? 16 * kHalfSteps * value_row() : 0;
    if (kBulkCopies && lane_ != 0) return;
    copy_expect(barrier, bytes, lane_);
    warp_copy(values_ + first, page + value_source_ + first, bytes, barrier, lane_);
    copy_commit(barrier);
  }

  __device__ void rotate_queries(int group);
  __device__ void attend_to_sinks();
  __device__ void score(int page, float (&scores)[kSubTiles][4], unsigned parity, const std::uint8_t* next_page);
  __device__ void weigh(int page, int index, float (&scores)[kSubTiles][4], unsigned parity);
  __device__ void accumulate(unsigned parity, const std::uint8_t* next_page);
  __device__ void write_partial();

  const DecodeParams& params_;
  const Share share_;
  char* shared_;
  Barriers barriers_;
  int warp_, lane_, head_, slot_, g_, t_;
  int queries_, query_;  ///< how many, padded; the one of this lane as column g of a B fragment
  char *keys_, *values_, *rotated_;
  int key_source_, value_source_;  ///< where this head's codes begin in a page
  float* extra_output_;
  std::uint32_t key_column_, value_column_;

  std::uint32_t query_pairs_[kSteps][2];  ///< unrotated, fp16: channels (j, j + 4) and their partners
  float unit0_ = 1.0f, unit1_ = 1.0f;     ///< of the scores in this lane's two columns
  float correction_unit_ = 1.0f;
  float output_[kSteps][4] = {};
  float largest0_ = -1e30f, largest1_ = -1e30f;  ///< what the exponents of the weights are taken from
  float sum0_ = 0.0f, sum1_ = 0.0f, zeros0_ = 0.0f, zeros1_ = 0.0f;
  std::uint32_t value_scale_bits_ = 0;  ///< largest scale of a value token so far, fp16 bits
  float weight_unit_ = 1.0f;
  std::uint32_t weights_[kSubTiles][2];
};

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::rotate_queries(int group) {
  // Lanes whose query is a copy of another's take the other versions.
  const int copies = 8 / queries_;
  __syncwarp();
#pragma unroll 1
  for (int versions = g_ / queries_; versions < 2; versions += copies) {
    const uint2* angles =
        reinterpret_cast<const uint2*>(params_.base_angles) + ((group * kSubTiles + 2 * versions) * kSteps) * 4 + t_;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const __half2 first = as_half2(query_pairs_[step][0]), second = as_half2(query_pairs_[step][1]);
      const auto rotate = [&](uint2 angle, std::uint32_t& a, std::uint32_t& b) {
        const __half2 cosine = as_half2(angle.x), sine = as_half2(angle.y);
        a = as_bits(__hfma2(first, cosine, __hmul2(second, sine)));
        b = as_bits(__hfma2(second, cosine, __hneg2(__hmul2(first, sine))));
      };
      uint4 result;
      rotate(__ldg(angles + step * 4), result.x, result.y);
      rotate(__ldg(angles + (kSteps + step) * 4), result.z, result.w);
      reinterpret_cast<uint4*>(rotated_)[((step * 2 + versions) * queries_ + query_) * 4 + t_] = result;
    }
  }
  // The next ones, in time for their use.
  if (static_cast<std::int64_t>(group + 2) * kGroupPages * layout::kPageTokens <= params_.angles_end) {
    const auto* next = reinterpret_cast<const char*>(params_.base_angles) + (group + 1) * kSubTiles * kSteps * 32;
    if (lane_ * 128 < kSubTiles * kSteps * 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(next + lane_ * 128));
  }
  __syncwarp();
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::score(int page, float (&scores)[kSubTiles][4], unsigned parity,
                                              const std::uint8_t* next_page) {
  using Lookup = CodeLookup<kBits>;
  const auto* angles =
      reinterpret_cast<const uint4*>(shared_ + params_.plan.angles) + (page % kGroupPages) * kSteps * 32 + lane_;
  const auto* ranges = reinterpret_cast<const uint4*>(shared_ + params_.plan.ranges) + head_ * kSteps * 4 + t_;
  const auto* rotated = reinterpret_cast<const uint4*>(rotated_) + query_ * 4 + t_;
  const char* row = keys_ + t_ * key_row();
  barrier_wait(barriers_.dense(warp_, kKeysFull), parity);
  barrier_wait(barriers_.dense(warp_, kKeysFull + 1), parity);

  // In flight at any time: the codes of the step after next, the lookups of the next, the arithmetic of this one.
  struct Codes {
    typename Lookup::Index first, second;
  };
  struct Numbers {
    std::uint32_t a[2 * kSubTiles], b[2 * kSubTiles];  ///< [m][r]
  };
  const auto load_codes = [&](int step) {
    const char* rows = row + 8 * step * key_row();
    return Codes{Lookup::key_index(rows, rows + 4 * key_row(), g_, key_bits()),
                 Lookup::key_index(rows + kPairs * key_row(), rows + (kPairs + 4) * key_row(), g_, key_bits())};
  };
  const auto look_up = [&](const Codes& codes) {
    Numbers numbers;
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      Lookup::look_up(codes.first, m, key_column_, numbers.a[2 * m], numbers.a[2 * m + 1]);
      Lookup::look_up(codes.second, m, key_column_, numbers.b[2 * m], numbers.b[2 * m + 1]);
    }
    return numbers;
  };
  Numbers next;
  Codes codes;
  if constexpr (kPipelined) {
    next = look_up(load_codes(0));
    codes = load_codes(1);
  }
#pragma unroll(kPipelined ? kSteps : 1)
  for (int step = 0; step < kSteps; ++step) {
    Numbers now = kPipelined ? next : look_up(load_codes(step));
    const uint4 range = ranges[step * 4], angle = angles[step * 32];
    uint4 query[2];
#pragma unroll
    for (int two = 0; two < 2; ++two) query[two] = rotated[(step * 2 + two) * queries_ * 4];
    if constexpr (kPipelined) {
      if (step + 1 < kSteps) next = look_up(codes);
      if (step + 2 < kSteps) codes = load_codes(step + 2);
    }
    std::uint32_t across[2 * kSubTiles], along[2 * kSubTiles];
#pragma unroll
    for (int i = 0; i < 2 * kSubTiles; ++i) {
      now.a[i] = as_bits(__hfma2(as_half2(now.a[i]), as_half2(range.x), as_half2(range.y)));
      now.b[i] = as_bits(__hfma2(as_half2(now.b[i]), as_half2(range.z), as_half2(range.w)));
    }
#pragma unroll
    for (int i = 0; i < 2 * kSubTiles; ++i) {
      const __half2 sine = as_half2(i & 1 ? angle.w : angle.y);
      across[i] = as_bits(__hmul2(as_half2(now.b[i]), sine));
      along[i] = as_bits(__hmul2(as_half2(now.a[i]), sine));
    }
#pragma unroll
    for (int i = 0; i < 2 * kSubTiles; ++i) {
      const __half2 cosine = as_half2(i & 1 ? angle.z : angle.x);
      now.a[i] = as_bits(__hfma2(as_half2(now.a[i]), cosine, __hneg2(as_half2(across[i]))));
      now.b[i] = as_bits(__hfma2(as_half2(now.b[i]), cosine, as_half2(along[i])));
    }
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      const uint4 both = query[m >> 1];
      multiply_add(scores[m], now.a[2 * m], now.a[2 * m + 1], now.b[2 * m], now.b[2 * m + 1], m & 1 ? both.z : both.x,
                   m & 1 ? both.w : both.y);
    }
    // All codes before those of two steps ahead have been read.
    if (step == kHalfSteps - 1 || step == kSteps - 1) {
      __syncwarp();
      if (next_page != nullptr) copy_keys(next_page, step == kSteps - 1);
    }
  }
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::weigh(int page, int index, float (&scores)[kSubTiles][4], unsigned parity) {
  const int column = 2 * t_ % queries_;
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    scores[m][0] *= unit0_, scores[m][2] *= unit0_;
    scores[m][1] *= unit1_, scores[m][3] *= unit1_;
  }
  if (params_.page.key.varying_outliers) {
    barrier_wait(barriers_.dense(warp_, kCorrectionsFull), parity);
    const auto* corrections = reinterpret_cast<const float2*>(shared_ + params_.plan.corrections) +
                              (warp_ * (queries_ >> 1) + (column >> 1)) * kPlane;
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 more = corrections[swizzled(token_of(g_, 0, 0)) ^ (4 * m + 2 * r)];
        scores[m][2 * r] += more.x;
        scores[m][2 * r + 1] += more.y;
      }
    }
    barrier_arrive(barriers_.dense(warp_, kCorrectionsEmpty));
  }
  const int begin = params_.sinks - page * layout::kPageTokens, end = share_.length - page * layout::kPageTokens;
  if (begin > 0 || end < layout::kPageTokens) {
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = token_of(g_, m, r);
        if (token < begin || token >= end) scores[m][2 * r] = scores[m][2 * r + 1] = -INFINITY;
      }
    }
  }

  barrier_wait(barriers_.tail(index % kTailBuffers, kTailFull), index / kTailBuffers & 1);
  const auto* value_ranges = reinterpret_cast<const std::uint32_t*>(
      tail(index) + (params_.page.value_parts.ranges - params_.page.key_parts.ranges));
  std::uint32_t range[kSubTiles][2], largest_scale = 0;
  float highest0 = -INFINITY, highest1 = -INFINITY;
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      range[m][r] = value_ranges[token_of(g_, m, r)];
      largest_scale = max(largest_scale, range[m][r] >> 16);
      highest0 = fmaxf(highest0, scores[m][2 * r]);
      highest1 = fmaxf(highest1, scores[m][2 * r + 1]);
    }
  }
  // A score above the reference by less than 2^8 leaves it as it is: rescaling is rare.
  largest_scale = __reduce_max_sync(~0u, largest_scale);
  const bool rescale =
      __any_sync(~0u, highest0 > largest0_ + 8.0f || highest1 > largest1_ + 8.0f) || largest_scale > value_scale_bits_;
  float fade0 = 1.0f, fade1 = 1.0f;
  if (rescale) {
    for (int step = 4; step < 32; step <<= 1) {
      highest0 = fmaxf(highest0, __shfl_xor_sync(~0u, highest0, step));
      highest1 = fmaxf(highest1, __shfl_xor_sync(~0u, highest1, step));
    }
    highest0 = fmaxf(highest0, largest0_), highest1 = fmaxf(highest1, largest1_);
    fade0 = exp2_fast(largest0_ - highest0), fade1 = exp2_fast(largest1_ - highest1);
    largest0_ = highest0, largest1_ = highest1;
    sum0_ *= fade0, sum1_ *= fade1, zeros0_ *= fade0, zeros1_ *= fade1;
    float unit_fade = 1.0f;
    if (largest_scale > value_scale_bits_) {
      value_scale_bits_ = largest_scale;
      // The largest scale comes into [2^4, 2^5): weights up to 2^8 fit, and 2^-18 is still a normal number.
      const int exponent = largest_scale >= 0x400u ? static_cast<int>(largest_scale >> 10) - 15 : -15;
      const float unit = __int_as_float((4 - exponent + 127) << 23);
      unit_fade = unit / weight_unit_;
      weight_unit_ = unit;
    }
#pragma unroll
    for (int tile = 0; tile < kSteps; ++tile) {
      output_[tile][0] *= fade0 * unit_fade, output_[tile][2] *= fade0 * unit_fade;
      output_[tile][1] *= fade1 * unit_fade, output_[tile][3] *= fade1 * unit_fade;
    }
  }
  const bool shares_weights = params_.page.value.outliers_per_end > 0;
  if (shares_weights) barrier_wait(barriers_.dense(warp_, kWeightsEmpty), parity ^ 1);
  if (rescale) {
    for (int query = 0; query < queries_; ++query) {
      const float fade = __shfl_sync(~0u, query & 1 ? fade1 : fade0, query >> 1);
      for (int channel = lane_; channel < kDim; channel += 32) extra_output_[channel * queries_ + query] *= fade;
    }
  }

  // Lanes whose columns are copies of others' write what those write.
  auto* shared_weights = reinterpret_cast<std::uint32_t*>(shared_ + params_.plan.weights) +
                         (warp_ * (queries_ >> 1) + (column >> 1)) * kPlane;
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weight0 = exp2_fast(scores[m][2 * r] - largest0_),
                  weight1 = exp2_fast(scores[m][2 * r + 1] - largest1_);
      const float zero = low_float(range[m][r]), scale = high_float(range[m][r]) * weight_unit_;
      sum0_ += weight0, sum1_ += weight1;
      zeros0_ += weight0 * zero, zeros1_ += weight1 * zero;
      weights_[m][r] = transpose_8x8(pack_halves(weight0 * scale, weight1 * scale));
      if (shares_weights) {
        shared_weights[swizzled(token_of(g_, 0, 0)) ^ (4 * m + 2 * r)] = pack_halves(weight0, weight1);
      }
    }
  }
  if (shares_weights) barrier_arrive(barriers_.dense(warp_, kWeightsFull));
  barrier_arrive(barriers_.tail(index % kTailBuffers, kTailEmpty));
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::accumulate(unsigned parity, const std::uint8_t* next_page) {
  using Lookup = CodeLookup<kBits>;
  const char* row = values_ + g_ * value_row();
  struct Numbers {
    std::uint32_t upper[2 * kSubTiles], lower[2 * kSubTiles];  ///< [m][r]
  };
  const auto look_up = [&](int tile) {
    const char* rows = row + 16 * tile * value_row();
    const auto upper = Lookup::value_index(rows, t_, value_bits());
    const auto lower = Lookup::value_index(rows + 8 * value_row(), t_, value_bits());
    Numbers numbers;
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      Lookup::look_up(upper, m, value_column_, numbers.upper[2 * m], numbers.upper[2 * m + 1]);
      Lookup::look_up(lower, m, value_column_, numbers.lower[2 * m], numbers.lower[2 * m + 1]);
    }
    return numbers;
  };
  barrier_wait(barriers_.dense(warp_, kValuesFull), parity);
  barrier_wait(barriers_.dense(warp_, kValuesFull + 1), parity);
  Numbers next;
  if constexpr (kPipelined) next = look_up(0);
#pragma unroll
  for (int tile = 0; tile < kSteps; ++tile) {
    const Numbers now = kPipelined ? next : look_up(tile);
    if (kPipelined && tile + 1 < kSteps) next = look_up(tile + 1);
#pragma unroll
    for (int m = 0; m < kSubTiles; ++m) {
      multiply_add(output_[tile], now.upper[2 * m], now.lower[2 * m], now.upper[2 * m + 1], now.lower[2 * m + 1],
                   weights_[m][0], weights_[m][1]);
    }
    if (tile == kHalfSteps - 1 || tile == kSteps - 1) {
      __syncwarp();
      if (next_page != nullptr) copy_values(next_page, tile == kSteps - 1);
    }
  }
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::run() {
  if (slot_ == 0 && blockIdx.x == 0 && params_.sinks > 0) attend_to_sinks();
  int group = -1;
  unsigned parity = 0;
  for (int page = share_.first_page + slot_; page < share_.end_page; page += params_.plan.pages_in_flight) {
    const int next = page + params_.plan.pages_in_flight;
    const std::uint8_t* next_page = next < share_.end_page ? page_address(next) : nullptr;
    if (page / kGroupPages != group) {
      group = page / kGroupPages;
      rotate_queries(group);
    }
    float scores[kSubTiles][4] = {};
    score(page, scores, parity, next_page);
    weigh(page, page - share_.first_page, scores, parity);
    accumulate(parity, next_page);
    parity ^= 1;
  }
  if (params_.page.value.outliers_per_end > 0) barrier_wait(barriers_.dense(warp_, kWeightsEmpty), parity ^ 1);
  __syncwarp();
  write_partial();
}

}  // namespace kvq::cuda
