#pragma once
// What a warp does to a page of its head:
//
//   scores[64, queries] = keys . rotated queries       mma, A = keys: row = token, contraction over channels
//   ... += what outliers of keys add                   outliers.cuh
//   online softmax in base 2, fp32
//   output[channel, queries] += values . weights       mma, A = values: row = channel, contraction over tokens
//   ... += what outliers of values add                 outliers.cuh
//
// RoPE. The channels of a step of the contraction are 8 pairs (j, j + head_dim / 2). What is done with them depends on
// how far they turn within a page: the first half of the steps are fast, the second half slow (all are fast where
// frequencies do not fall as usual, RopeTables::fast_steps).
//
// - Slow ones: keys stay as they are, the queries turn. A query rotated to token 32 + 32 u of the page is, channel by
//   channel, a polynomial of degree 3 in u, error 2e-4 at most; its four coefficients are columns of the mma, and a
//   token's score is a polynomial in its u, evaluated once for all steps. Columns 2 q, 2 q + 1 of the first mma are the
//   coefficients of 1 and u of query q, those of the second u^2 and u^3: lane (g, t) holds all four of query t.
//
// - Fast ones: token 8 g + 2 m + r. Keys are rotated by 8 g + r, queries to the page's first token plus 2 m: columns
//   2 q + i of the first mma are for m = i, those of the second for m = 2 + i.
//
// In a pair of channels zeros and scales are divided by a power of two, which the queries are multiplied by, and so are
// the queries by a power of two per head: fp16 then holds numbers of at most 1 or 2, whatever the model.
//
// Weights are multiplied by the scale of their token's values and by a power of two that follows the largest such
// scale; zeros are summed apart, in fp32.

#include <kvq/kernels/cuda/code_lookup.cuh>
#include <kvq/kernels/cuda/decode_shared.cuh>
#include <kvq/kernels/cuda/outlier_list.cuh>
#include <kvq/kernels/cuda/page_copies.cuh>

namespace kvq::cuda {

template <int kBits, int kDim>
class HeadWarp {
 public:
  __device__ HeadWarp(const DecodeParams& params, const Share& share, char* shared, int warp, int lane)
      : params_(params),
        share_(share),
        shared_(shared),
        copies_(params, share, shared, warp, lane),
        memory_(copies_.memory()),
        warp_(warp),
        lane_(lane),
        g_(lane >> 2),
        t_(lane & 3),
        key_lane_(memory_ + params.plan.key_codes + t_ * key_row()),
        query_lane_(shared + params.plan.queries + (g_ >> 1) * 32 + t_ * 8),
        range_lane_(shared + params.plan.ranges + t_ * 16),
        angle_lane_(shared + params.plan.angles + lane * 16),
        ratio_lane_(shared + params.plan.ratios + ((g_ & 1) * 4 + t_) * 4),
        key_column_(CodeLookup<kBits>::column(lane)) {}

  /// Copies are under way while tables are built.
  __device__ void begin() {
    if (lane_ == 0) {
      copies_.init_barriers();
      barrier_init_fence();
    }
    __syncwarp();
    copies_.begin();
  }
  __device__ void begin_lists() { copies_.begin_lists(); }
  /// By one warp each: what add_fast_step() multiplies by.
  __device__ void prepare_fast_step(int step);
  /// By one warp: tables of the head that all warps read.
  __device__ void prepare();
  /// By one warp: the exact first tokens.
  __device__ void attend_to_sinks();

  /// After the block's barrier. Leaves the warp's share of the output in its memory.
  __device__ void run();

 private:
  static constexpr int kSteps = kDim / 16;  ///< of the contraction over channels; tiles of output channels
  static constexpr int kPairs = kDim / 2;
  static constexpr int kPairTiles = (kPairs + 15) / 16;  ///< of 16 pairs of neighbouring channels
  static constexpr int kFastSteps = kSteps - kSteps / 2;
  static constexpr int kMapBytes = kFastMapBytes;
  using Lookup = CodeLookup<kBits>;
  /// Loops over steps and tiles unrolled, lookups one step ahead. Long loop bodies and large head_dim make code that
  /// does not fit the instruction cache (and nvcc 13.0's ptxas crashes on it).
  static constexpr bool kPipelined = (kBits == 2 || kBits == 3 || kBits == 4) && kSteps <= 8;

  static constexpr bool kOwn = kBits == kOwnRows;
  __device__ int key_bits() const { return kBits > 0 ? kBits : params_.page.key.bits; }
  __device__ int value_bits() const { return kBits > 0 ? kBits : params_.page.value.bits; }
  /// Where a kv head's codebook begins among those of all heads.
  __device__ int key_book() const {
    return params_.key_books > 1 ? kOwn ? share_.kv_head * kRowLevels : share_.kv_head << key_bits() : 0;
  }
  __device__ int value_book() const {
    return params_.value_books > 1 ? kOwn ? share_.kv_head * kRowLevels : share_.kv_head << value_bits() : 0;
  }
  __device__ RowInfo key_row_info(int channel) const {
    return {reinterpret_cast<const std::uint32_t*>(shared_ + params_.plan.rows)[channel]};
  }
  __device__ int key_row() const { return 8 * key_bits(); }
  __device__ int value_row() const { return 8 * value_bits(); }
  struct StepCodes {
    typename Lookup::Pair first, second;  ///< of a pair's two channels
  };
  __device__ StepCodes load_codes(int step) const {
    if constexpr (kOwn) {
      const char* codes = memory_ + params_.plan.key_codes;
      const int channel = 8 * step + t_, other = channel + kPairs, shift = copies_.key_shift();
      return {Lookup::load_pair(codes, shift, key_row_info(channel), key_row_info(channel + 4), g_),
              Lookup::load_pair(codes, shift, key_row_info(other), key_row_info(other + 4), g_)};
    } else {
      return load_plain_codes(step);
    }
  }
  __device__ StepCodes load_plain_codes(int step) const {
    const char* rows = key_lane_ + step * 8 * key_row();
    return {Lookup::load_pair(rows, rows + 4 * key_row(), g_, key_bits()),
            Lookup::load_pair(rows + kPairs * key_row(), rows + (kPairs + 4) * key_row(), g_, key_bits())};
  }
  /// Numbers of a step, [2 m + r].
  struct StepKeys {
    std::uint32_t first[2 * kSubTiles], second[2 * kSubTiles];
  };
  __device__ StepKeys look_up(const StepCodes& codes) const {
    StepKeys keys;
    const auto first = Lookup::key_index(codes.first), second = Lookup::key_index(codes.second);
    Lookup::look_up_keys(first, key_column_, keys.first);
    Lookup::look_up_keys(second, key_column_, keys.second);
    return keys;
  }
  /// Times scale plus zero.
  __device__ void denormalise(StepKeys& keys, int step) const {
    const uint4 range = *reinterpret_cast<const uint4*>(range_lane_ + step * 64);
#pragma unroll
    for (int i = 0; i < 2 * kSubTiles; ++i) {
      keys.first[i] = as_bits(__hfma2(as_half2(keys.first[i]), as_half2(range.x), as_half2(range.y)));
      keys.second[i] = as_bits(__hfma2(as_half2(keys.second[i]), as_half2(range.z), as_half2(range.w)));
    }
  }
  /// Fragment of this lane's query, rotated backwards.
  struct RotatedQuery {
    std::uint32_t first, second;
  };
  __device__ static RotatedQuery rotate_query(uint2 query, std::uint32_t cosine, std::uint32_t sine) {
    const __half2 first = as_half2(query.x), second = as_half2(query.y);
    return {as_bits(__hfma2(first, as_half2(cosine), __hmul2(second, as_half2(sine)))),
            as_bits(__hfma2(second, as_half2(cosine), __hneg2(__hmul2(first, as_half2(sine)))))};
  }
  __device__ uint2 query_of(int step) const { return *reinterpret_cast<const uint2*>(query_lane_ + step * 128); }

  __device__ void add_rotated(const StepKeys& keys, const char* base, int step, float (&sums)[kSubTiles][4]) const;
  __device__ void add_fast_step(StepKeys keys, const char* base, int step, float (&sums)[kSubTiles][4]) const;
  __device__ void add_fast_step_in_parts(StepKeys keys, const char* base, int step, float (&sums)[kSubTiles][4]) const;
  __device__ void add_slow_step(StepKeys keys, const char* base, int step, float (&sums)[kSubTiles][2][4]) const;
  /// Scores of tokens 8 g + i.
  __device__ void score(float (&scores)[2 * kSubTiles]);
  __device__ void load_entries(const OutlierReader& list, bool keys, int first, ChainPlace& chain,
                               OutlierEntry (&entries)[kChunks]) const;
  __device__ void add_key_outliers(int page, float (&scores)[2 * kSubTiles]);
  __device__ void weigh(int page, float (&scores)[2 * kSubTiles]);
  __device__ void rescale(float highest, std::uint32_t largest_scale, std::uint32_t bound);
  __device__ std::uint32_t largest_value_outlier() const;
  __device__ void add_value_outliers();
  __device__ void accumulate();
  __device__ void write_share();

  const DecodeParams& params_;
  const Share& share_;
  char* shared_;
  PageCopies<kDim> copies_;
  char* memory_;
  int warp_, lane_, g_, t_;
  /// Where this lane finds what it needs of step 0.
  const char *key_lane_, *query_lane_, *range_lane_, *angle_lane_, *ratio_lane_;
  std::uint32_t key_column_;

  // Query t of the block's four is this lane's.
  float unit_ = 1.0f, outlier_unit_ = 1.0f;  ///< of its scores, of what outliers of keys add to them
  float output_[kSteps][4] = {};
  /// From outliers of values: row = two neighbouring channels, columns 0 to 3 the first of them, 4 to 7 the second.
  float extra_[kPairTiles][4] = {};
  float largest_ = -1e30f;  ///< what the exponents of its weights are taken from
  float sum_ = 0.0f, zeros_ = 0.0f;
  std::uint32_t value_scale_bits_ = 0;  ///< largest scale of a value token so far, fp16 bits
  float weight_unit_ = 1.0f;
  std::uint32_t extra_bits_ = 0;             ///< largest outlier, zero or scale of values so far, fp16 bits
  float extra_unit_ = power_of_two(4 + 15);  ///< what extra_ is times
  float value_level_ = 0.0f;                 ///< what code 0 of a value stands for, before zero and scale
  std::uint32_t weights_[kSubTiles][2];
};

template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_rotated(const StepKeys& keys, const char* base, int step,
                                                                   float (&sums)[kSubTiles][4]) const {
  const uint4 turned = *reinterpret_cast<const uint4*>(base + step * 128);
  const uint2 query = query_of(step);
  const RotatedQuery lower = rotate_query(query, turned.x, turned.y), upper = rotate_query(query, turned.z, turned.w);
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    const RotatedQuery& rotated = m < 2 ? lower : upper;
    multiply_add(sums[m], keys.first[2 * m], keys.first[2 * m + 1], keys.second[2 * m], keys.second[2 * m + 1],
                 rotated.first, rotated.second);
  }
}

/// Scale, zero and rotation of keys as one linear map of what their codes stand for.
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_fast_step(StepKeys keys, const char* base, int step,
                                                                     float (&sums)[kSubTiles][4]) const {
  const auto* map = reinterpret_cast<const uint4*>(angle_lane_ + step * kMapBytes);
  const uint4 even = map[0], odd = map[32], zeros = map[64];
#pragma unroll
  for (int i = 0; i < 2 * kSubTiles; ++i) {
    const uint4& of = i & 1 ? odd : even;
    const __half2 a = as_half2(keys.first[i]), b = as_half2(keys.second[i]);
    const __half2 first = as_half2(i & 1 ? zeros.z : zeros.x), second = as_half2(i & 1 ? zeros.w : zeros.y);
    keys.first[i] = as_bits(__hfma2(a, as_half2(of.x), __hfma2(b, as_half2(of.y), first)));
    keys.second[i] = as_bits(__hfma2(b, as_half2(of.z), __hfma2(a, as_half2(of.w), second)));
  }
  add_rotated(keys, base, step, sums);
}

/// The same where all steps are fast.
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_fast_step_in_parts(StepKeys keys, const char* base, int step,
                                                                              float (&sums)[kSubTiles][4]) const {
  const uint4 angle = *reinterpret_cast<const uint4*>(angle_lane_ + step * 512);
  denormalise(keys, step);
#pragma unroll
  for (int i = 0; i < 2 * kSubTiles; ++i) {
    const __half2 cosine = as_half2(i & 1 ? angle.z : angle.x), sine = as_half2(i & 1 ? angle.w : angle.y);
    const __half2 a = as_half2(keys.first[i]), b = as_half2(keys.second[i]);
    keys.first[i] = as_bits(__hfma2(a, cosine, __hneg2(__hmul2(b, sine))));
    keys.second[i] = as_bits(__hfma2(b, cosine, __hmul2(a, sine)));
  }
  add_rotated(keys, base, step, sums);
}

template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_slow_step(StepKeys keys, const char* base, int step,
                                                                     float (&sums)[kSubTiles][2][4]) const {
  const uint2 turned = *reinterpret_cast<const uint2*>(base + step * 128);
  const __half2 ratio = as_half2(*reinterpret_cast<const std::uint32_t*>(ratio_lane_ + step * 32));
  const uint2 query = query_of(step);
  denormalise(keys, step);
  const RotatedQuery low = rotate_query(query, turned.x, turned.y);
  const RotatedQuery high = {as_bits(__hmul2(as_half2(low.first), ratio)),
                             as_bits(__hmul2(as_half2(low.second), ratio))};
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    const auto add = [&](float(&sum)[4], const RotatedQuery& rotated) {
      multiply_add(sum, keys.first[2 * m], keys.first[2 * m + 1], keys.second[2 * m], keys.second[2 * m + 1],
                   rotated.first, rotated.second);
    };
    add(sums[m][0], low);
    add(sums[m][1], high);
  }
}

template <int kBits, int kDim>
__device__ void HeadWarp<kBits, kDim>::score(float (&scores)[2 * kSubTiles]) {
  const char* base = memory_ + params_.plan.base_angles + (g_ & 1) * 64 + t_ * 16;
  float fast[kSubTiles][4] = {}, sums[kSubTiles][2][4] = {};
  if (params_.fast_steps <= kFastSteps) {
    // In flight: the codes of the step after next, the lookups of the next, the arithmetic of this one.
    StepCodes codes = load_codes(0);
    StepKeys next;
    if constexpr (kPipelined) {
      next = look_up(codes);
      codes = load_codes(1);
    }
#pragma unroll(kPipelined ? kFastSteps : 1)
    for (int step = 0; step < kFastSteps; ++step) {
      const StepKeys now = kPipelined ? next : look_up(load_codes(step));
      if constexpr (kPipelined) {
        next = look_up(codes);
        if (step + 2 < kSteps) codes = load_codes(step + 2);
      }
      if (step == kFastSteps - 1 && params_.fast_steps < kFastSteps) {
        add_slow_step(now, base, step, sums);
      } else {
        add_fast_step(now, base, step, fast);
      }
    }
#pragma unroll(kPipelined ? kSteps - kFastSteps : 1)
    for (int step = kFastSteps; step < kSteps; ++step) {
      const StepKeys now = kPipelined ? next : look_up(load_codes(step));
      if (kPipelined && step + 1 < kSteps) {
        next = look_up(codes);
        if (step + 2 < kSteps) codes = load_codes(step + 2);
      }
      add_slow_step(now, base, step, sums);
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) add_fast_step_in_parts(look_up(load_codes(step)), base, step, fast);
  }
  __syncwarp();
  copies_.copy_keys();
  const float first = static_cast<float>(g_ - 4) * 0.25f;
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float u = first + static_cast<float>(2 * m + r) / 32.0f;
      const float linear = fmaf(sums[m][1][2 * r + 1], u, sums[m][1][2 * r]);
      const float slow = fmaf(fmaf(linear, u, sums[m][0][2 * r + 1]), u, sums[m][0][2 * r]);
      scores[2 * m + r] = (slow + fast[m][2 * r + (m & 1)]) * unit_;
    }
  }
}

}  // namespace kvq::cuda

#include <kvq/kernels/cuda/head_ends.cuh>
#include <kvq/kernels/cuda/head_weights.cuh>
#include <kvq/kernels/cuda/outliers.cuh>
