#pragma once
// Which values of one token stay exact under the two rules of DESIGN §2. Internal to lib/quant.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/encode_loops.h>

namespace kvq {

/// Marks the `per_end` largest values, then the `per_end` smallest of the rest, ties to the lower channel.
/// 2 * per_end < number of values. Holds scratch: one per thread.
class ExtremeSelector {
 public:
  explicit ExtremeSelector(const EncodeLoops& loops, int width);

  struct Rest {
    float minimum, maximum;  ///< of the values not marked
  };
  /// Fills `mask` (0 or 1 per value).
  Rest select(std::span<const float> x, int per_end, std::span<std::uint8_t> mask);

 private:
  void take(int channel, std::span<std::uint8_t> mask);
  void take_one_by_one(int per_end, std::span<std::uint8_t> mask);
  void take_by_partition(int per_end, std::span<std::uint8_t> mask);

  const EncodeLoops& loops_;
  std::vector<std::int32_t> from_top_,
      from_bottom_;  ///< ordered keys; what is taken can win neither maximum nor minimum
  std::vector<std::uint64_t> ranked_;
};

/// Keeps of the marked values the `limit` with the largest excess (ties to the lower channel) and clears the other
/// marks. `inverse` = 1 / half-width, 0 for a range without width, where any excess counts as infinite.
void keep_largest_excess(std::span<const float> x, std::span<const float> lower, std::span<const float> upper,
                         std::span<const float> inverse, int limit, std::span<std::uint8_t> mask);

}  // namespace kvq
