#pragma once
// What comes back of tokens after encoding and decoding, for every recipe. SideEncoder does it for those that packed
// caches can hold; the others have no packed form, only values.

#include <cstdint>
#include <memory>
#include <span>

#include <kvq/quant/quantizer.h>

namespace kvq {

class VectorBlocks;

/// Built once per layer and side; const and thread-safe.
class SideSimulator {
 public:
  /// Throws Mismatch when thresholds or codebooks do not have the sizes that the recipe needs; Usage for head widths
  /// that the recipe cannot have.
  explicit SideSimulator(const SideQuantizer& quantizer);

  /// Tokens of positions `first_position` on, `[tokens, kv_heads, head_dim]`, finite: replaced by what the cache gives
  /// back. On axis channel-group whole groups, or what there is of them to be coded. With range=window all of the
  /// window that is coded. `outliers_per_token` (may be empty): exact values of each, `[tokens]`, or `[tokens,
  /// kv_heads]` by kv head. `blocks`: of the sequence, as start() gave them; for recipes that start() gives some for.
  /// Throws ExactOverflow.
  void round_trip(std::span<float> x, std::int64_t first_position, int threads,
                  std::span<std::uint32_t> outliers_per_token = {}, VectorBlocks* blocks = nullptr) const;

  /// For a sequence whose tokens are coded together with those before them (codes_blocks()): what it has so far, which
  /// is nothing. Null for other recipes.
  std::unique_ptr<VectorBlocks> start() const;

  /// What exact tokens become: scaled fp16 and back. Throws ExactOverflow.
  void round_exact(std::span<float> x) const;

  struct Method;

 private:
  std::shared_ptr<const Method> method_;
  SideQuantizer quantizer_;  ///< for range=window, which has its method only when the window is there
  float to_stored_, from_stored_;
};

}  // namespace kvq
