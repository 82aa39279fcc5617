#pragma once
// The cache that really holds packed bits, on the CPU: a model on a GPU copies keys, values and queries over, and the
// answers back.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/packed_attention.h>
#include <kvq/cache/packed_sequence.h>
#include <kvq/model/rope.h>

namespace kvq {

/// One sequence in a pool that others may share. Codes are those of SimulatedCache, bit for bit; attention is computed
/// in fp32 whatever the dtype of the queries. Not thread-safe, nor are two caches of the same pool.
class PackedCache final : public KvCache {
 public:
  PackedCache(std::shared_ptr<PackedPool> pool, int threads);
  /// A pool of its own; throws what PackedPool throws.
  PackedCache(std::shared_ptr<const Quantizer> quantizer, int threads);

  /// Throws Numeric naming layer, side, token and channel for NaN/Inf and for exact values that overflow; Mismatch for
  /// tensors of another shape than the quantizer's; Memory.
  at::Tensor attend(const AttentionInput& input) override;
  void reset() override { crop(0); }
  /// Forgets the tokens from `tokens` on.
  void crop(std::int64_t tokens) { sequence_.crop(tokens); }

  std::int64_t tokens() const override { return sequence_.length(); }
  /// What the sequence occupies, read from the allocations.
  std::int64_t bytes() const override { return sequence_.bytes(); }
  const PackedSequence& sequence() const { return sequence_; }

 private:
  PackedSequence sequence_;
  int threads_;
  RopeTables tables_;  ///< for keys that are stored rotated
  PackedAttention attention_;
};

}  // namespace kvq
