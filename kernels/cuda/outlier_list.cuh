#pragma once
// The list of a head's outliers in a page, as a warp reads it.

#include <kvq/kernels/cuda/decode_shared.cuh>
#include <kvq/kernels/cuda/page_copies.cuh>

namespace kvq::cuda {

/// A head's list in a page: the first `staged` entries lie in the warp's memory.
struct OutlierEntry {
  std::uint16_t value;
  int channel, token;
};

class OutlierReader {
 public:
  __device__ OutlierReader(const char* memory, const ListPlan& list, const layout::SideParts& parts, ListExtent extent)
      : count(extent.count) {
    const auto begin = static_cast<unsigned>(extent.begin);
    staged = min(min(extent.count, list.entries), list.room - extent.begin);
    values = memory + list.values + (static_cast<unsigned>(parts.outlier_values) + 2 * begin & 15);
    channels = memory + list.channels + (static_cast<unsigned>(parts.outlier_channels) + begin & 15);
    tokens = memory + list.tokens;
    first_bit =
        static_cast<int>(8 * static_cast<unsigned>(parts.outlier_tokens) + layout::kOutlierTokenBits * begin & 127);
  }
  __device__ __forceinline__ OutlierEntry staged_entry(int entry) const {
    const int bit = first_bit + layout::kOutlierTokenBits * entry;
    const auto* bytes = reinterpret_cast<const unsigned char*>(tokens + (bit >> 3));
    return {*reinterpret_cast<const std::uint16_t*>(values + 2 * entry), static_cast<unsigned char>(channels[entry]),
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
static __device__ __noinline__ OutlierEntry far_entry(const DecodeParams& params, bool keys, const std::uint8_t* page,
                                                      int place, ChainPlace& chain) {
  const layout::SideShape& shape = keys ? params.page.key : params.page.value;
  const layout::SideParts& parts = keys ? params.page.key_parts : params.page.value_parts;
  const std::uint8_t *values = page + parts.outlier_values, *channels = page + parts.outlier_channels;
  const std::uint8_t* tokens = page + parts.outlier_tokens;
  if (const auto room = static_cast<int>(shape.page_entries()); place >= room) {
    const layout::OverflowBlock block = layout::overflow_block(shape);
    if (chain.hops < 0) chain = {0, *reinterpret_cast<const std::uint32_t*>(page + parts.overflow_link)};
    for (; chain.hops < (place - room) / layout::kOutlierBlockEntries; ++chain.hops) {
      chain.link = *reinterpret_cast<const std::uint32_t*>(params.key_overflow + chain.link * block.bytes + block.link);
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

}  // namespace kvq::cuda
