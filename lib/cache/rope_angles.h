#pragma once
// Rotary angles for caches in pages. Only the distance between query and key matters, so a key is rotated by its slot
// in the page (one small table, the same for all pages) and a query by its own slot and by the number of pages between:
// position n stands for page n / 64 and slot n mod 64. All angles are computed in double.

#include <cstdint>
#include <vector>

#include <kvq/core/kv_shape.h>

namespace kvq {

class RopeAngles {
 public:
  explicit RopeAngles(const RopeParams& params);

  int pairs() const { return pairs_; }

  /// cos and sin of slot * frequency, `[pairs][64]`.
  const float* slot_cos() const { return slot_cos_.data(); }
  const float* slot_sin() const { return slot_sin_.data(); }

  /// The same for one slot, `[pairs]`.
  const float* cos_of_slot(int slot) const { return by_slot_cos_.data() + slot * pairs_; }
  const float* sin_of_slot(int slot) const { return by_slot_sin_.data() + slot * pairs_; }

  /// Of 64 * pages * frequency, `[pairs]`; after reserve() only.
  const float* cos_of_pages(std::int64_t pages) const { return page_cos_.data() + pages * pairs_; }
  const float* sin_of_pages(std::int64_t pages) const { return page_sin_.data() + pages * pairs_; }
  /// Makes distances 0 … pages there.
  void reserve(std::int64_t pages);

 private:
  int pairs_;
  std::vector<double> frequencies_;
  std::vector<float> slot_cos_, slot_sin_, by_slot_cos_, by_slot_sin_, page_cos_, page_sin_;
};

}  // namespace kvq
