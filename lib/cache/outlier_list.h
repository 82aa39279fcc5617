#pragma once
// The list of exact values in a page of one side (kernels/layout/page.h): by kv head, token, channel, in the page's own
// room first, then in a chain of overflow blocks.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/cache/block_pool.h>
#include <kvq/cache/page_bytes.h>
#include <kvq/kernels/layout/page.h>

namespace kvq {

struct OutlierEntry {
  std::int32_t channel;  ///< of all kv heads
  std::int32_t token;    ///< of the page
  std::uint16_t value;   ///< scaled fp16
};

/// Four tokens of 6 bits from 3 bytes.
inline void unpack_outlier_tokens(const std::uint8_t* from, std::int64_t entries, std::uint8_t* to) {
  for (std::int64_t entry = 0; entry < entries; entry += 4, from += 3) {
    const std::uint32_t bits = from[0] | from[1] << 8 | from[2] << 16;
    for (int i = 0; i < 4; ++i) to[entry + i] = static_cast<std::uint8_t>(bits >> (6 * i) & 63u);
  }
}

/// One side of a page.
class OutlierList {
 public:
  OutlierList(const layout::SideShape& shape, const layout::SideParts& parts, std::uint8_t* page)
      : shape_(shape), parts_(parts), page_(page) {}

  /// Of a page of zeros: no entry, no block.
  void begin();
  std::vector<OutlierEntry> read(const BlockPool& overflow) const;
  /// Replaces what is there. `entries` in any order. Takes blocks and gives back what is not needed; where the number
  /// of entries is the same for every token it touches no block.
  void write(std::vector<OutlierEntry> entries, BlockPool& overflow);

 private:
  int count(int kv_head) const {
    const std::uint8_t* from = page_ + parts_.outlier_counts;
    return shape_.outlier_count_bytes() == 2 ? load_small(from, kv_head, 2)
                                             : load_number<std::int32_t>(from + std::ptrdiff_t{4} * kv_head);
  }

  const layout::SideShape& shape_;
  const layout::SideParts& parts_;
  std::uint8_t* page_;
};

}  // namespace kvq
