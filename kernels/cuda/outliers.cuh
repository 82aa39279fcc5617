#pragma once
// What outliers add to scores and to the output. A lane has an entry of the head's list at a time; sums over the
// entries of a token (keys) or of a channel (values) are taken by mma: 16 entries are the contraction, A says where
// each of them belongs (rows of ones and zeros), B what it adds for each query. Half of the columns would be spare, so
// two neighbouring tokens or channels share a row: what is of the second one stands in other columns.
//
// An outlier's dense code is 0 and decoded like any other, so what is added is its value minus what code 0 stands for.
// Included by head_warp.cuh.

namespace kvq::cuda {

/// What 32 entries, one of each lane, have to say: a row of eight columns of fp16, and the place that it is added to.
struct EntryRow {
  uint4 columns;
  int place;
};

/// Adds kChunks times 32 entries to `sums`. Row g + 8 * half of a tile is place row_of(tile, half).
template <int kTiles, typename RowOf>
__device__ __forceinline__ void add_entries(char* scratch, int lane, const EntryRow (&rows)[kChunks],
                                            const RowOf& row_of, float (&sums)[kTiles][4]) {
  // Lane (g, t) has of the fragments' columns the entries 8 t … 8 t + 7, so that their places are one load; rows are
  // stored so that neither writing nor the loads of matrices meet in banks.
  const auto slot_of = [](int entry) { return (entry & 24) | ((entry + 2 * (entry >> 3)) & 7); };
  char* places = scratch + kChunks * kRowBytes;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    *reinterpret_cast<uint4*>(scratch + chunk * kRowBytes + slot_of(lane) * 16) = rows[chunk].columns;
    *reinterpret_cast<std::uint16_t*>(places + chunk * kPlaceBytes + lane * 2) =
        static_cast<std::uint16_t>(rows[chunk].place);
  }
  __syncwarp();
  const int matrix = lane >> 3, entry = 8 * ((lane & 7) >> 1) + 2 * matrix + (lane & 1);
  // Places are compared as fp16 bit patterns: equal numbers, equal bits.
  const auto ones = [](std::uint32_t pair, std::uint32_t both) {
    return as_bits(__heq2(as_half2(pair), as_half2(both)));
  };
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    std::uint32_t b[4];
    load_transposed(b, scratch + chunk * kRowBytes + slot_of(entry) * 16);
    const uint4 pairs = *reinterpret_cast<const uint4*>(places + chunk * kPlaceBytes + (lane & 3) * 16);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::uint32_t upper = row_of(tile, 0) * 0x10001u, lower = row_of(tile, 1) * 0x10001u;
      multiply_add(sums[tile], ones(pairs.x, upper), ones(pairs.x, lower), ones(pairs.y, upper), ones(pairs.y, lower),
                   b[0], b[1]);
      multiply_add(sums[tile], ones(pairs.z, upper), ones(pairs.z, lower), ones(pairs.w, upper), ones(pairs.w, lower),
                   b[2], b[3]);
    }
  }
  __syncwarp();
}

/// The entries `first` + lane, + 32, …; of those that are not there, some other.
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::load_entries(const OutlierReader& list, bool keys, int first,
                                                                    ChainPlace& chain,
                                                                    OutlierEntry (&entries)[kChunks]) const {
  const int last = list.count - 1;
  if (min(first + 32 * kChunks, list.count) <= list.staged) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      entries[chunk] = list.staged_entry(min(first + 32 * chunk + lane_, last));
    }
  } else {
    const ListExtent extent = keys ? copies_.key_list() : copies_.value_list();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      entries[chunk] = far_entry(params_, keys, copies_.page_address(copies_.list_page()),
                                 extent.begin + min(first + 32 * chunk + lane_, last), chain);
    }
  }
}

/// Outliers of keys: (value - what code 0 stands for) * (query, turned back by the token's angle)[channel].
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_key_outliers(int page, float (&scores)[2 * kSubTiles]) {
  const OutlierReader list(memory_, params_.plan.key_list, params_.page.key_parts, copies_.key_list());
  float sums[2][4] = {};
  const auto* rows = reinterpret_cast<const uint4*>(shared_ + params_.plan.key_rows);
  const auto* turns = reinterpret_cast<const uint2*>(shared_ + params_.plan.key_turns);
  ChainPlace chain;
#pragma unroll 1
  for (int first = 0; first < list.count; first += 32 * kChunks) {
    OutlierEntry entries[kChunks];
    load_entries(list, true, first, chain, entries);
    EntryRow terms[kChunks];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const OutlierEntry& entry = entries[chunk];
      const uint4 row = rows[entry.channel];
      const uint2 turn = turns[entry.channel];
      const unsigned position = page * layout::kPageTokens + entry.token;
      const float2 angle = cos_sin_of(turn.x * position + __umulhi(turn.y & 0xffff0000u, position));
      float difference = 0.25f * (half_bits_to_float(entry.value) - low_float(turn.y));
      if (first + 32 * chunk + lane_ >= list.count) difference = 0.0f;
      const __half2 cosine = __float2half2_rn(difference * angle.x), sine = __float2half2_rn(difference * angle.y);
      const std::uint32_t p01 = as_bits(__hfma2(as_half2(row.x), cosine, __hmul2(as_half2(row.z), sine)));
      const std::uint32_t p23 = as_bits(__hfma2(as_half2(row.y), cosine, __hmul2(as_half2(row.w), sine)));
      // Column 2 q + (token & 1) is query q.
      const bool odd = entry.token & 1;
      const std::uint32_t low = odd ? 0x1044u : 0x4410u, high = odd ? 0x3244u : 0x4432u;
      terms[chunk] = {
          {__byte_perm(p01, 0, low), __byte_perm(p01, 0, high), __byte_perm(p23, 0, low), __byte_perm(p23, 0, high)},
          entry.token >> 1};
    }
    // Row g + 8 half of tile, column 2 q + i: token 8 g + 4 tile + 2 half + i, query q.
    add_entries(
        memory_ + params_.plan.scratch, lane_, terms,
        [this](int tile, int half) { return static_cast<std::uint32_t>(4 * g_ + 2 * tile + half); }, sums);
  }
#pragma unroll
  for (int i = 0; i < 2 * kSubTiles; ++i) scores[i] = fmaf(sums[i >> 2][i & 3], outlier_unit_, scores[i]);
}

/// fp16 bits without the sign, of this lane's entries.
template <int kBits, int kDim>
__device__ __forceinline__ std::uint32_t HeadWarp<kBits, kDim>::largest_value_outlier() const {
  const OutlierReader list(memory_, params_.plan.value_list, params_.page.value_parts, copies_.value_list());
  std::uint32_t largest = 0;
  ChainPlace chain;
  for (int at = lane_; at < list.staged; at += 32) {
    largest = max(largest, *reinterpret_cast<const std::uint16_t*>(list.values + 2 * at) & 0x7fffu);
  }
  for (int at = list.staged + lane_; at < list.count; at += 32) {
    const OutlierEntry entry =
        far_entry(params_, false, copies_.page_address(copies_.list_page()), copies_.value_list().begin + at, chain);
    largest = max(largest, entry.value & 0x7fffu);
  }
  return largest;
}

/// Outliers of values: weight * (value - what code 0 stands for).
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_value_outliers() {
  const OutlierReader list(memory_, params_.plan.value_list, params_.page.value_parts, copies_.value_list());
  const auto* ranges = reinterpret_cast<const std::uint32_t*>(memory_ + params_.plan.value_ranges);
  const char* weights = memory_ + params_.plan.weights;
  ChainPlace chain;
#pragma unroll 1
  for (int first = 0; first < list.count; first += 32 * kChunks) {
    OutlierEntry entries[kChunks];
    load_entries(list, false, first, chain, entries);
    EntryRow terms[kChunks];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const OutlierEntry& entry = entries[chunk];
      const std::uint32_t range = ranges[entry.token];
      const uint2 weight = *reinterpret_cast<const uint2*>(weights + weight_cell(entry.token));
      float difference =
          (half_bits_to_float(entry.value) - fmaf(high_float(range), value_level_, low_float(range))) * extra_unit_;
      if (first + 32 * chunk + lane_ >= list.count) difference = 0.0f;
      const __half2 factor = __float2half2_rn(difference);
      const std::uint32_t p01 = as_bits(__hmul2(as_half2(weight.x), factor));
      const std::uint32_t p23 = as_bits(__hmul2(as_half2(weight.y), factor));
      const bool odd = entry.channel & 1;
      terms[chunk] = {{odd ? 0 : p01, odd ? 0 : p23, odd ? p01 : 0, odd ? p23 : 0}, entry.channel >> 1};
    }
    add_entries(
        memory_ + params_.plan.scratch, lane_, terms,
        [this](int tile, int half) { return static_cast<std::uint32_t>(16 * tile + g_ + 8 * half); }, extra_);
  }
}

}  // namespace kvq::cuda
