#pragma once
// Pages whose codes stand for rotated vectors, read as they are: the rotation belongs to the other side of the product
// then. Attention's weighted sum of rotated values, turned back once, is that of the values; the product of a rotated
// key with the query, turned likewise, is that of the key with the query. The latter needs keys after RoPE (rope=post):
// before it, each key has an angle of its own between its rotation and the query.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <kvq/quant/head_rotation.h>
#include <kvq/quant/quantizer.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

/// rotate=hadamard, as `heads` query heads have it: each that of its kv head.
HeadRotation query_rotation(const SideQuantizer& quantizer, int heads);

/// Of one layer and side; const and thread-safe.
class SideRotation {
 public:
  /// Empty where pages are decoded to the vectors themselves: no rotation, keys before RoPE, or turbo with a sketch.
  /// `heads`: query heads.
  static std::optional<SideRotation> of(const SideQuantizer& quantizer, Side side, int heads);

  /// Tokens of a cache, `[tokens, kv_heads, head_dim]`, in place.
  void forward(std::span<float> x) const;
  /// Queries, and sums of values: `[tokens, heads, head_dim]`, each by the rotation of its kv head.
  void forward_queries(std::span<float> x) const;
  void inverse_sums(std::span<float> x) const;

 private:
  SideRotation() = default;

  /// rotate=hadamard, of kv heads and of query heads.
  std::optional<HeadRotation> of_cache_, of_queries_;
  std::vector<std::shared_ptr<const TurboCodec>> turbo_;  ///< by kv head
  int heads_ = 0;
};

}  // namespace kvq
