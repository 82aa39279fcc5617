#pragma once
// The transform of values: per kv head, v' = v R with R = diag(scale) · Hadamard. Its inverse belongs to the output
// side: the attention's weighted sum of v' times R^-1 is that of v.
//
// A Hadamard matrix of Sylvester's kind needs a power of two. Other head dimensions are mixed in blocks of the largest
// power of two that divides them (96: three blocks of 32).

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/vector/orthogonal.h>
#include <kvq/vector/orthogonal_loops.h>

namespace kvq {

class HeadRotation {
 public:
  /// `scale`: `[kv_heads, head_dim]`, positive. Throws Mismatch for another size or for numbers that are not positive.
  HeadRotation(std::span<const float> scale, int kv_heads, int head_dim);

  /// `x`: `[tokens, kv_heads, head_dim]`, in place. fp32, every operation rounded: first the scale (1/√block is part
  /// of it), then for h = 1, 2, 4, … of the block (a, b) -> (a + b, a - b) on channels h apart.
  void forward(std::span<float> x) const;
  /// x R^-1: the same mixing, then the inverse scale.
  void inverse(std::span<float> x) const;

  /// What both multiply by, `[kv_heads * head_dim]`, and the channels that are mixed together.
  const std::vector<float>& forward_factors() const { return forward_; }
  const std::vector<float>& inverse_factors() const { return inverse_; }
  int block() const { return block_; }

 private:
  const OrthogonalLoops* loops_;
  int width_, block_;
  std::vector<float> forward_, inverse_;  ///< `[kv_heads * head_dim]`
};

}  // namespace kvq
