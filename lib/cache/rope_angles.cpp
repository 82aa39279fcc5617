#include <kvq/cache/rope_angles.h>

#include <cmath>

#include <kvq/kernels/layout/packed_layout.h>

namespace kvq {

RopeAngles::RopeAngles(const RopeParams& params)
    : pairs_(params.rotary_dim / 2), frequencies_(params.inverse_frequencies()) {
  for (const double frequency : frequencies_) {
    for (int slot = 0; slot < layout::kPageTokens; ++slot) {
      slot_cos_.push_back(static_cast<float>(std::cos(slot * frequency)));
      slot_sin_.push_back(static_cast<float>(std::sin(slot * frequency)));
    }
  }
  for (int slot = 0; slot < layout::kPageTokens; ++slot) {
    for (int pair = 0; pair < pairs_; ++pair) {
      by_slot_cos_.push_back(slot_cos_[static_cast<std::size_t>(pair * layout::kPageTokens + slot)]);
      by_slot_sin_.push_back(slot_sin_[static_cast<std::size_t>(pair * layout::kPageTokens + slot)]);
    }
  }
}

void RopeAngles::reserve(std::int64_t pages) {
  if (pairs_ == 0) return;
  for (auto known = static_cast<std::int64_t>(page_cos_.size()) / pairs_; known <= pages; ++known) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(known * layout::kPageTokens) * frequency;
      page_cos_.push_back(static_cast<float>(std::cos(angle)));
      page_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace kvq
