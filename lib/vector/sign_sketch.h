#pragma once
// The 1-bit quantized Johnson–Lindenstrauss transform (QJL, arXiv 2406.03482; TurboQuant, arXiv 2504.19874, definition
// 1). S has independent standard normal elements, `[dim, dim]`. A vector r is kept as sign(S r), one bit a channel, and
// its norm; √(π/2) / dim · ‖r‖ · Sᵀ sign(S r) is then an estimate of r that has no bias over S: its inner product with
// any vector is that of r on average.

#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

struct OrthogonalLoops;

/// Const and thread-safe.
class SignSketch {
 public:
  static SignSketch random(int dim, std::uint64_t seed);
  /// From what table() gave. Throws Mismatch for a wrong size.
  static SignSketch from_table(int dim, std::vector<float> table);

  int dim() const { return dim_; }
  const std::vector<float>& table() const { return table_; }  ///< S, `[dim, dim]`

  /// `r`: `[rows, dim]`. bits: 1 where S r is not negative (also for 0), else 0, `[rows, dim]`.
  void signs(std::span<const float> r, std::span<std::uint8_t> bits) const;
  /// √(π/2) / dim · Sᵀ (2 bits - 1), `[rows, dim]`; times ‖r‖ it is the estimate.
  void estimate(std::span<const std::uint8_t> bits, std::span<float> direction) const;

 private:
  SignSketch(int dim, std::vector<float> table);

  const OrthogonalLoops* loops_;
  int dim_;
  float scale_;
  std::vector<float> table_, columns_;
};

}  // namespace kvq
