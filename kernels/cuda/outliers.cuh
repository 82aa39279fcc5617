#pragma once
// What outliers add to scores and to the output. A lane has an entry of the head's list at a time; sums over the entries
// of a token (keys) or of a channel (values) are taken by mma: 16 entries are the contraction, A says where each of them
// belongs (rows of ones and zeros), B what it adds for each query. Half of the columns would be spare, so two
// neighbouring tokens or channels share a row: what is of the second one stands in other columns.
//
// An outlier's dense code is 0 and decoded like any other, so what is added is its value minus what code 0 stands for.
// Included by head_warp.cuh.

namespace kvq::cuda {

/// Adds what 32 entries, one of each lane, say to rows of `sums`. `row`: eight columns of fp16. `place`: the row,
/// 0 … 16 * kTiles - 1; row `first + 16 * by_tile ...` of A is given by row_of(tile, half): what row g + 8 * half of a
/// tile stands for.
template <int kTiles, typename RowOf>
__device__ __forceinline__ void add_entries(char* scratch, int lane, const uint4& row, int place, const RowOf& row_of,
                                            float (&sums)[kTiles][4]) {
  // Lane (g, t) has of the fragments' columns the entries 8 t … 8 t + 7, so that their places are one load; rows are
  // stored so that neither writing nor the loads of matrices meet in banks.
  const auto slot_of = [](int entry) { return (entry & 24) | ((entry + 2 * (entry >> 3)) & 7); };
  __syncwarp();
  *reinterpret_cast<uint4*>(scratch + slot_of(lane) * 16) = row;
  *reinterpret_cast<std::uint16_t*>(scratch + kEntryRowBytes + lane * 2) = static_cast<std::uint16_t>(place);
  __syncwarp();
  const int matrix = lane >> 3, entry = 8 * ((lane & 7) >> 1) + 2 * matrix + (lane & 1);
  std::uint32_t b[4];
  load_transposed(b, scratch + slot_of(entry) * 16);
  const uint4 places = *reinterpret_cast<const uint4*>(scratch + kEntryRowBytes + (lane & 3) * 16);
  // Places are compared as fp16 bit patterns: equal numbers, equal bits.
  const auto ones = [](std::uint32_t pair, std::uint32_t both) { return as_bits(__heq2(as_half2(pair), as_half2(both))); };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const std::uint32_t upper = row_of(tile, 0) * 0x10001u, lower = row_of(tile, 1) * 0x10001u;
    multiply_add(sums[tile], ones(places.x, upper), ones(places.x, lower), ones(places.y, upper),
                 ones(places.y, lower), b[0], b[1]);
    multiply_add(sums[tile], ones(places.z, upper), ones(places.z, lower), ones(places.w, upper),
                 ones(places.w, lower), b[2], b[3]);
  }
}

/// A head's list in a page: the first `staged` entries lie in the warp's memory.
struct OutlierEntry {
  std::uint16_t value;
  int channel, token;
};

class OutlierReader {
 public:
  __device__ OutlierReader(const char* memory, const ListPlan& list, const layout::SideShape& shape,
                           const layout::SideParts& parts, ListExtent extent)
      : count(extent.count) {
    const std::int64_t begin = extent.begin;
    staged = min(min(extent.count, list.entries), static_cast<int>(shape.page_entries() - begin));
    values = memory + list.values + (static_cast<int>(parts.outlier_values + 2 * begin) & 15);
    channels = memory + list.channels + (static_cast<int>(parts.outlier_channels + begin) & 15);
    const std::int64_t bit = 8 * parts.outlier_tokens + layout::kOutlierTokenBits * begin;
    tokens = memory + list.tokens;
    first_bit = static_cast<int>(bit & 127);
  }
  __device__ __forceinline__ OutlierEntry staged_entry(int entry) const {
    const int bit = first_bit + layout::kOutlierTokenBits * entry;
    const auto* bytes = reinterpret_cast<const unsigned char*>(tokens + (bit >> 3));
    return {*reinterpret_cast<const std::uint16_t*>(values + 2 * entry),
            static_cast<unsigned char>(channels[entry]),
            static_cast<int>(static_cast<unsigned>(bytes[0] | bytes[1] << 8) >> (bit & 7)) & 63};
  }

  int count, staged, first_bit;
  const char *values, *channels, *tokens;
};

/// How far a lane has come in a page's chain of overflow blocks.
struct ChainPlace {
  int hops = -1;
  std::uint32_t link = 0;
};

/// An entry of the list that is not in the warp's memory. `place`: in the whole list of the page; not before the last.
__device__ __noinline__ OutlierEntry far_entry(const DecodeParams& params, bool keys, const std::uint8_t* page,
                                               int place, ChainPlace& chain) {
  const layout::SideShape& shape = keys ? params.page.key : params.page.value;
  const layout::SideParts& parts = keys ? params.page.key_parts : params.page.value_parts;
  const std::uint8_t *values = page + parts.outlier_values, *channels = page + parts.outlier_channels;
  const std::uint8_t* tokens = page + parts.outlier_tokens;
  if (const auto room = static_cast<int>(shape.page_entries()); place >= room) {
    const layout::OverflowBlock block = layout::overflow_block(shape);
    if (chain.hops < 0) chain = {0, *reinterpret_cast<const std::uint32_t*>(page + parts.overflow_link)};
    for (; chain.hops < (place - room) / layout::kOutlierBlockEntries; ++chain.hops) {
      chain.link =
          *reinterpret_cast<const std::uint32_t*>(params.key_overflow + chain.link * block.bytes + block.link);
    }
    values = params.key_overflow + chain.link * block.bytes;
    channels = values + block.channels, tokens = values + block.tokens;
    place = (place - room) % layout::kOutlierBlockEntries;
  }
  const int bit = layout::kOutlierTokenBits * place;
  const unsigned low = tokens[bit >> 3], high = (bit & 7) > 2 ? tokens[(bit >> 3) + 1] : 0u;
  return {reinterpret_cast<const std::uint16_t*>(values)[place], channels[place],
          static_cast<int>((low | high << 8) >> (bit & 7)) & 63};
}

/// Outliers of keys: (value - what code 0 stands for) * (query, turned back by the token's angle)[channel].
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_key_outliers(int page, float (&scores)[2 * kSubTiles]) {
  const OutlierReader list(memory_, params_.plan.key_list, params_.page.key, params_.page.key_parts,
                           copies_.key_list());
  float sums[2][4] = {};  // row g + 8 half of tile: tokens 8 g + 4 tile + 2 half + (column & 1), column 2 q + ...
  const auto* rows = reinterpret_cast<const uint4*>(shared_ + params_.plan.key_rows);
  const auto* turns = reinterpret_cast<const uint2*>(shared_ + params_.plan.key_turns);
  ChainPlace chain;
#pragma unroll 1
  for (int first = 0; first < list.count; first += 32) {
    const int at = first + lane_;
    OutlierEntry entry;
    if (min(first + 32, list.count) <= list.staged) {
      entry = list.staged_entry(min(at, list.count - 1));
    } else {
      entry = far_entry(params_, true, copies_.page_address(copies_.list_page()),
                        copies_.key_list().begin + min(at, list.count - 1), chain);
    }
    const uint4 row = rows[entry.channel];
    const uint2 turn = turns[entry.channel];
    const unsigned position = page * layout::kPageTokens + entry.token;
    const float2 angle = cos_sin_of(turn.x * position + __umulhi(turn.y & 0xffff0000u, position));
    float difference = 0.25f * (half_bits_to_float(entry.value) - low_float(turn.y));
    if (at >= list.count) difference = 0.0f;
    const __half2 cosine = __float2half2_rn(difference * angle.x), sine = __float2half2_rn(difference * angle.y);
    const std::uint32_t p01 = as_bits(__hfma2(as_half2(row.x), cosine, __hmul2(as_half2(row.z), sine)));
    const std::uint32_t p23 = as_bits(__hfma2(as_half2(row.y), cosine, __hmul2(as_half2(row.w), sine)));
    // Column 2 q + (token & 1) is query q.
    const bool odd = entry.token & 1;
    const std::uint32_t low = odd ? 0x1044u : 0x4410u, high = odd ? 0x3244u : 0x4432u;
    const uint4 columns = {__byte_perm(p01, 0, low), __byte_perm(p01, 0, high), __byte_perm(p23, 0, low),
                           __byte_perm(p23, 0, high)};
    add_entries(memory_ + params_.plan.scratch, lane_, columns, entry.token >> 1,
                [this](int tile, int half) { return static_cast<std::uint32_t>(4 * g_ + 2 * tile + half); }, sums);
  }
#pragma unroll
  for (int i = 0; i < 2 * kSubTiles; ++i) scores[i] = fmaf(sums[i >> 2][i & 3], outlier_unit_, scores[i]);
}

/// fp16 bits without the sign, of this lane's entries.
template <int kBits, int kDim>
__device__ __forceinline__ std::uint32_t HeadWarp<kBits, kDim>::largest_value_outlier() const {
  const OutlierReader list(memory_, params_.plan.value_list, params_.page.value, params_.page.value_parts,
                           copies_.value_list());
  std::uint32_t largest = 0;
  ChainPlace chain;
  for (int at = lane_; at < list.staged; at += 32) {
    largest = max(largest, *reinterpret_cast<const std::uint16_t*>(list.values + 2 * at) & 0x7fffu);
  }
  for (int at = list.staged + lane_; at < list.count; at += 32) {
    const OutlierEntry entry = far_entry(params_, false, copies_.page_address(copies_.list_page()),
                                         copies_.value_list().begin + at, chain);
    largest = max(largest, entry.value & 0x7fffu);
  }
  return largest;
}

/// Outliers of values: weight * (value - what code 0 stands for).
template <int kBits, int kDim>
__device__ __forceinline__ void HeadWarp<kBits, kDim>::add_value_outliers() {
  const OutlierReader list(memory_, params_.plan.value_list, params_.page.value, params_.page.value_parts,
                           copies_.value_list());
  const auto* ranges = reinterpret_cast<const std::uint32_t*>(memory_ + params_.plan.value_ranges);
  const char* weights = memory_ + params_.plan.weights;
  ChainPlace chain;
#pragma unroll 1
  for (int first = 0; first < list.count; first += 32) {
    const int at = first + lane_;
    OutlierEntry entry;
    if (min(first + 32, list.count) <= list.staged) {
      entry = list.staged_entry(min(at, list.count - 1));
    } else {
      entry = far_entry(params_, false, copies_.page_address(copies_.list_page()),
                        copies_.value_list().begin + min(at, list.count - 1), chain);
    }
    const std::uint32_t range = ranges[entry.token];
    const uint2 weight = *reinterpret_cast<const uint2*>(weights + weight_cell(entry.token));
    float difference =
        (half_bits_to_float(entry.value) - fmaf(high_float(range), value_level_, low_float(range))) * extra_unit_;
    if (at >= list.count) difference = 0.0f;
    const __half2 factor = __float2half2_rn(difference);
    const std::uint32_t p01 = as_bits(__hmul2(as_half2(weight.x), factor));
    const std::uint32_t p23 = as_bits(__hmul2(as_half2(weight.y), factor));
    const bool odd = entry.channel & 1;
    const uint4 columns = {odd ? 0 : p01, odd ? 0 : p23, odd ? p01 : 0, odd ? p23 : 0};
    add_entries(memory_ + params_.plan.scratch, lane_, columns, entry.channel >> 1,
                [this](int tile, int half) { return static_cast<std::uint32_t>(16 * tile + g_ + 8 * half); }, extra_);
  }
}

}  // namespace kvq::cuda
