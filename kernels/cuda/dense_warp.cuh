#pragma once
// The warps that decode a head's keys and values and attend to them. Per page of 64 tokens:
//
//   scores[64, queries] = keys . rotated queries       mma, A = keys: row = token, contraction over channels
//   online softmax in base 2, fp32
//   output[channel, queries] += values . weights       mma, A = values: row = channel, contraction over tokens
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
        keys_(shared + params.plan.key_codes + warp * kDim * key_row()),
        key_lane_(keys_ + t_ * key_row()),
        query_lane_(shared + params.plan.queries + (head_ * kSteps * kBlockQueries + (g_ >> 1)) * 32 + t_ * 8),
        range_lane_(shared + params.plan.ranges + head_ * kSteps * 64 + t_ * 16),
        angle_lane_(shared + params.plan.angles + lane * 16),
        ratio_lane_(shared + params.plan.ratios + ((g_ & 1) * 4 + t_) * 4),
        values_(shared + params.plan.value_codes + warp * kDim * value_row()),
        extra_output_(reinterpret_cast<float4*>(shared + params.plan.extra_output) + warp * kValueWarps * kDim),
        key_column_(CodeLookup<kBits>::column(lane)),
        value_column_(CodeLookup<kBits>::column(lane) + 128) {}

  /// Before the block's first barrier: the first copies are under way while tables are built.
  __device__ void prefetch() {
    const int page = share_.first_page + slot_;
    if (page >= share_.end_page) return;
    copy(page_address(page), kKeysFull);
    copy(page_address(page), kValuesFull);
  }

  /// Tables of this head that all its warps and the service warps read.
  __device__ void prepare();

  __device__ void run();

 private:
  static constexpr int kSteps = kDim / 16;  ///< of the contraction over channels; tiles of output channels
  static constexpr int kPairs = kDim / 2;
  static constexpr int kFastSteps = kSteps - kSteps / 2;
  using Lookup = CodeLookup<kBits>;
  /// Loops over steps and tiles unrolled, lookups one step ahead. Long loop bodies and large head_dim make code that
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
    return shared_ + params_.plan.tails + barriers_.tail_buffer(index) * params_.plan.tail_bytes;
  }
  __device__ void copy(const std::uint8_t* page, int which) {
    std::uint64_t* barrier = barriers_.dense(warp_, which);
    const bool keys = which == kKeysFull;
    const int bytes = kDim * (keys ? key_row() : value_row());
    const std::int64_t from = (keys ? params_.page.key_parts.codes : params_.page.value_parts.codes) +
                              static_cast<std::int64_t>(share_.first_head + head_) * bytes;
    if (kBulkCopies && lane_ != 0) return;
    copy_expect(barrier, bytes, lane_);
    warp_copy(keys ? keys_ : values_, page + from, bytes, barrier, lane_);
    copy_commit(barrier);
  }

  struct StepCodes {
    typename Lookup::Pair first, second;  ///< of a pair's two channels
  };
  __device__ StepCodes load_codes(int step) const {
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

  __device__ void add_fast_step(StepKeys keys, const char* base, int step, float (&sums)[kSubTiles][4]) const;
  __device__ void add_slow_step(StepKeys keys, const char* base, int step, float (&sums)[kSubTiles][2][4]) const;
  __device__ void attend_to_sinks();
  __device__ void score(int index, float (&scores)[2 * kSubTiles], unsigned parity, const std::uint8_t* next_page);
  __device__ void weigh(int page, int index, float (&scores)[2 * kSubTiles], int turn);
  __device__ void accumulate(unsigned parity, const std::uint8_t* next_page);
  __device__ void write_partial();

  const DecodeParams& params_;
  const Share share_;
  char* shared_;
  Barriers barriers_;
  int warp_, lane_, head_, slot_, g_, t_;
  char* keys_;
  /// Where this lane finds what it needs of step 0.
  const char *key_lane_, *query_lane_, *range_lane_, *angle_lane_, *ratio_lane_;
  char* values_;
  float4* extra_output_;
  std::uint32_t key_column_, value_column_;

  // Query t of the block's four is this lane's.
  float unit_ = 1.0f;  ///< of its scores
  float output_[kSteps][4] = {};
  float largest_ = -1e30f;  ///< what the exponents of its weights are taken from
  float sum_ = 0.0f, zeros_ = 0.0f;
  std::uint32_t value_scale_bits_ = 0;  ///< largest scale of a value token so far, fp16 bits
  float weight_unit_ = 1.0f;
  std::uint32_t weights_[kSubTiles][2];
};

template <int kBits, int kDim>
__device__ __forceinline__ void DenseWarp<kBits, kDim>::add_fast_step(StepKeys keys, const char* base, int step,
                                                                      float (&sums)[kSubTiles][4]) const {
  const uint4 turned = *reinterpret_cast<const uint4*>(base + step * 128);
  const uint4 angle = *reinterpret_cast<const uint4*>(angle_lane_ + step * 512);
  const uint2 query = query_of(step);
  denormalise(keys, step);
  const RotatedQuery lower = rotate_query(query, turned.x, turned.y), upper = rotate_query(query, turned.z, turned.w);
#pragma unroll
  for (int i = 0; i < 2 * kSubTiles; ++i) {
    const __half2 cosine = as_half2(i & 1 ? angle.z : angle.x), sine = as_half2(i & 1 ? angle.w : angle.y);
    const __half2 a = as_half2(keys.first[i]), b = as_half2(keys.second[i]);
    keys.first[i] = as_bits(__hfma2(a, cosine, __hneg2(__hmul2(b, sine))));
    keys.second[i] = as_bits(__hfma2(b, cosine, __hmul2(a, sine)));
  }
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    const RotatedQuery& rotated = m < 2 ? lower : upper;
    multiply_add(sums[m], keys.first[2 * m], keys.first[2 * m + 1], keys.second[2 * m], keys.second[2 * m + 1],
                 rotated.first, rotated.second);
  }
}

template <int kBits, int kDim>
__device__ __forceinline__ void DenseWarp<kBits, kDim>::add_slow_step(StepKeys keys, const char* base, int step,
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
__device__ void DenseWarp<kBits, kDim>::score(int index, float (&scores)[2 * kSubTiles], unsigned parity,
                                              const std::uint8_t* next_page) {
  barriers_.wait_for_tail(index, kTailFull);
  barrier_wait(barriers_.dense(warp_, kKeysFull), parity);
  const char* base =
      shared_ + params_.plan.base_angles + barriers_.tail_buffer(index) * kSteps * 128 + (g_ & 1) * 64 + t_ * 16;
  float fast[kSubTiles][4] = {}, sums[kSubTiles][2][4] = {};
  if (params_.fast_steps == kFastSteps) {
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
      add_fast_step(now, base, step, fast);
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
    for (int step = 0; step < kSteps; ++step) add_fast_step(look_up(load_codes(step)), base, step, fast);
  }
  __syncwarp();
  if (next_page != nullptr) copy(next_page, kKeysFull);
  const float first = static_cast<float>(g_ - 4) * 0.25f;
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float u = first + static_cast<float>(2 * m + r) / 32.0f;
      const float linear = fmaf(sums[m][1][2 * r + 1], u, sums[m][1][2 * r]);
      scores[2 * m + r] = fmaf(fmaf(linear, u, sums[m][0][2 * r + 1]), u, sums[m][0][2 * r]) + fast[m][2 * r + (m & 1)];
    }
  }
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::weigh(int page, int index, float (&scores)[2 * kSubTiles], int turn) {
  constexpr int kTokens = 2 * kSubTiles;  // 8 g + i of this lane
  const int buffer = turn % kCorrectionBuffers;
  char* own = shared_ + params_.plan.corrections +
              (buffer * params_.plan.dense_warps() + warp_) * params_.plan.correction_bytes;
  if (params_.page.key.varying_outliers) {
    barrier_wait(barriers_.slot(slot_, kCorrectionsFull + buffer), turn / kCorrectionBuffers & 1);
    const auto* corrections = reinterpret_cast<const float*>(own) + correction_cell(8 * g_) * kBlockQueries + t_;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) scores[i] = fmaf(scores[i], unit_, corrections[i * kBlockQueries]);
  } else {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) scores[i] *= unit_;
  }
  const int begin = params_.sinks - page * layout::kPageTokens, end = share_.length - page * layout::kPageTokens;
  if (begin > 0 || end < layout::kPageTokens) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (8 * g_ + i < begin || 8 * g_ + i >= end) scores[i] = -INFINITY;
    }
  }

  const auto* value_ranges =
      reinterpret_cast<const uint4*>(tail(index) + (params_.page.value_parts.ranges - params_.page.key_parts.ranges)) +
      2 * g_;
  std::uint32_t range[kTokens];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 four = value_ranges[half];
    range[4 * half] = four.x, range[4 * half + 1] = four.y, range[4 * half + 2] = four.z, range[4 * half + 3] = four.w;
  }
  std::uint32_t largest_scale = 0;
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    largest_scale = max(largest_scale, range[i] >> 16);
    highest = fmaxf(highest, scores[i]);
  }
  // A score above the reference by less than 2^8 leaves it as it is: rescaling is rare.
  const bool rescale = __any_sync(~0u, highest > largest_ + 8.0f || largest_scale > value_scale_bits_);
  float fade = 1.0f;
  if (rescale) {
    for (int step = 4; step < 32; step <<= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    largest_scale = __reduce_max_sync(~0u, largest_scale);
    highest = fmaxf(highest, largest_);
    fade = exp2_fast(largest_ - highest);
    largest_ = highest;
    sum_ *= fade, zeros_ *= fade;
    float unit_fade = 1.0f;
    if (largest_scale > value_scale_bits_) {
      value_scale_bits_ = largest_scale;
      // The largest scale comes into [2^4, 2^5): weights up to 2^8 fit, and 2^-18 is still a normal number.
      const int exponent = largest_scale >= 0x400u ? static_cast<int>(largest_scale >> 10) - 15 : -15;
      const float unit = __int_as_float((4 - exponent + 127) << 23);
      unit_fade = unit / weight_unit_;
      weight_unit_ = unit;
    }
    const float fade0 = __shfl_sync(~0u, fade, 2 * t_ & 3) * unit_fade;
    const float fade1 = __shfl_sync(~0u, fade, (2 * t_ & 3) + 1) * unit_fade;
#pragma unroll
    for (int tile = 0; tile < kSteps; ++tile) {
      output_[tile][0] *= fade0, output_[tile][2] *= fade0;
      output_[tile][1] *= fade1, output_[tile][3] *= fade1;
    }
  }
  const bool shares_weights = params_.page.value.outliers_per_end > 0;
  if (rescale) {
    if (shares_weights) barrier_wait(barriers_.slot(slot_, kWeightsEmpty), (turn & 1) ^ 1);
    const float fades[4] = {__shfl_sync(~0u, fade, 0), __shfl_sync(~0u, fade, 1), __shfl_sync(~0u, fade, 2),
                            __shfl_sync(~0u, fade, 3)};
    for (int channel = lane_; channel < kValueWarps * kDim; channel += 32) {
      float4& sum = extra_output_[channel];
      sum.x *= fades[0], sum.y *= fades[1], sum.z *= fades[2], sum.w *= fades[3];
    }
  }

  float weight[kTokens];
  std::uint32_t plain[kSubTiles], scaled[kSubTiles];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    weight[i] = exp2_fast(scores[i] - largest_);
    sum_ += weight[i];
    zeros_ += weight[i] * low_float(range[i]);
  }
#pragma unroll
  for (int m = 0; m < kSubTiles; ++m) {
    plain[m] = pack_halves(weight[2 * m], weight[2 * m + 1]);
    scaled[m] = pack_halves(weight[2 * m] * (high_float(range[2 * m]) * weight_unit_),
                            weight[2 * m + 1] * (high_float(range[2 * m + 1]) * weight_unit_));
  }
  __syncwarp();
  *reinterpret_cast<uint4*>(own + t_ * kOwnWeightStride + g_ * 16) = {scaled[0], scaled[1], scaled[2], scaled[3]};
  if (shares_weights) {
    barrier_wait(barriers_.slot(slot_, kWeightsEmpty), (turn & 1) ^ 1);
    char* shares = shared_ + params_.plan.weights + warp_ * kWeightBytes;
    *reinterpret_cast<uint4*>(shares + t_ * kWeightStride + g_ * 16) = {plain[0], plain[1], plain[2], plain[3]};
    barrier_arrive(barriers_.slot(slot_, kWeightsFull));
  }
  barrier_arrive(barriers_.tail(index, kTailEmpty));
  // Column g of the weights' fragments is query g % 4; a lane needs 16 neighbouring tokens.
  __syncwarp();
  const auto* from = reinterpret_cast<const uint4*>(own + (g_ & 3) * kOwnWeightStride + t_ * 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = from[half];
    weights_[2 * half][0] = words.x, weights_[2 * half][1] = words.y;
    weights_[2 * half + 1][0] = words.z, weights_[2 * half + 1][1] = words.w;
  }
  if (params_.page.key.varying_outliers) barrier_arrive(barriers_.slot(slot_, kCorrectionsEmpty + buffer));
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::accumulate(unsigned parity, const std::uint8_t* next_page) {
  const char* row = values_ + g_ * value_row();
  struct Numbers {
    std::uint32_t upper[2 * kSubTiles], lower[2 * kSubTiles];  ///< [m][b]
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
  }
  __syncwarp();
  if (next_page != nullptr) copy(next_page, kValuesFull);
}

template <int kBits, int kDim>
__device__ void DenseWarp<kBits, kDim>::run() {
  if (slot_ == 0 && blockIdx.x == 0 && params_.sinks > 0) attend_to_sinks();
  int turn = 0;
  for (int page = share_.first_page + slot_; page < share_.end_page; page += params_.plan.pages_in_flight) {
    const int next = page + params_.plan.pages_in_flight;
    const std::uint8_t* next_page = next < share_.end_page ? page_address(next) : nullptr;
    float scores[2 * kSubTiles];
    score(page - share_.first_page, scores, turn & 1, next_page);
    weigh(page, page - share_.first_page, scores, turn);
    accumulate(turn & 1, next_page);
    ++turn;
  }
  if (params_.page.value.outliers_per_end > 0) barrier_wait(barriers_.slot(slot_, kWeightsEmpty), (turn & 1) ^ 1);
  __syncwarp();
  write_partial();
}

}  // namespace kvq::cuda
