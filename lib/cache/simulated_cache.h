#pragma once
// A cache that stores what the packed one would give back: keys and values are encoded and decoded on the way in, whole
// windows at once. The fast teacher-forced path.

#include <cstdint>
#include <memory>
#include <vector>

#include <kvq/model/attention_backend.h>
#include <kvq/model/rope.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/footprint.h>

namespace kvq {

class SimulatedCache final : public AttentionBackend {
 public:
  SimulatedCache(std::shared_ptr<const Quantizer> quantizer, int threads);
  ~SimulatedCache() override;
  /// Throws Numeric naming layer, side, token and channel for NaN/Inf and for exact values that overflow.
  at::Tensor attend(const AttentionInput& input) override;
  void reset() override;

  /// What a packed cache with the present content occupies.
  Footprint footprint() const;
  std::int64_t tokens() const;

 private:
  struct Layer;
  std::shared_ptr<const Quantizer> quantizer_;
  int threads_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  std::vector<std::vector<std::uint32_t>> key_outliers_;  ///< per layer, per token
};

}  // namespace kvq
