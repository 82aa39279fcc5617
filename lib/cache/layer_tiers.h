#pragma once
// One layer of a simulated cache with tiers (kvq/quant/tiers.h): its tokens' codes, and attention over what they stand
// for at the time of each query. A token is appended, then what that moves is re-encoded, then its query is answered,
// and its weights are added: query t is answered by what queries before t have decided. Token by token, so that the
// result does not depend on how the tokens are cut into calls.
//
// by=window is an oracle: the weights of all queries of the window over the unquantized keys come first, then each
// token is encoded at the bits of its tier. All of the window must come in one call.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/core/side.h>
#include <kvq/model/rope.h>
#include <kvq/quant/quantizer.h>
#include <kvq/quant/tier_footprint.h>

namespace kvq {

/// Consecutive new tokens.
struct TierInput {
  std::int64_t first_position = 0;
  at::Tensor query;       ///< `[tokens, heads, head_dim]`, rotated
  at::Tensor key, value;  ///< `[tokens, kv_heads, head_dim]`, contiguous fp32; keys as the recipe encodes them
  bool bf16 = false;      ///< as AttentionInput::bf16
};

/// State of one sequence and layer. Not thread-safe.
class LayerTiers {
 public:
  /// `quantizer` and `rope` outlive it. Throws Mismatch for tables of other sizes than the recipe's.
  LayerTiers(const Quantizer& quantizer, int layer, int threads, RopeTable& rope);
  ~LayerTiers();

  /// Result `[tokens, heads, head_dim]`, fp32. Calls come in order of position. Throws Numeric for exact values that
  /// overflow; Usage where by=window gets its window in more than one call.
  at::Tensor attend(const TierInput& input);
  void reset();

  TierTokens tiers() const;
  /// Exact values of each token, `[tokens, lists]`, 0 for sinks.
  const std::vector<std::uint32_t>& outliers(Side side) const;
  /// What is held now, `[tokens, kv_heads, head_dim]` fp32, keys rotated; dropped tokens as they last were.
  at::Tensor held(Side side) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvq
