#pragma once
// Which tokens of one layer a simulated cache keeps, and attention over them. One pass over many queries gives what a
// token-by-token decode loop gives, however the tokens are cut into calls:
//
// - first-recent, h2o: a token is appended, then what exceeds the budget goes, then its query is answered. Query t
//   sees at most eviction_budget(t + 1) tokens, itself among them. h2o judges by the weights that queries before t
//   gave; weights of the query heads that share a kv head are added.
// - snapkv, pyramidkv: queries of the prompt see all of it; then the choice is made; queries after it see what was
//   chosen and everything that has come since. The votes of the query heads that share a kv head are added before
//   they are pooled.
//
// Kept tokens stay at their rotary positions, but for first-recent with positions=cache: there the query counts kept
// tokens only. Distances to the newest tokens are the same either way; those to the first tokens shrink.

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include <kvq/core/kv_shape.h>
#include <kvq/model/rope.h>
#include <kvq/quant/eviction_footprint.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Consecutive new tokens.
struct EvictionInput {
  std::int64_t first_position = 0;
  at::Tensor query;  ///< `[tokens, heads, head_dim]`, rotated
  at::Tensor unrotated_query;
  at::Tensor keys, values;  ///< `[first_position + tokens, kv_heads, head_dim]`: all tokens so far; keys rotated
  bool bf16 = false;
};

/// State of one sequence and layer.
class LayerEviction {
 public:
  virtual ~LayerEviction() = default;
  /// Result `[tokens, heads, head_dim]`, fp32 or the dtype of the query. Calls come in order of position.
  virtual at::Tensor attend(const EvictionInput& input) = 0;
  /// Positions that are kept now: kept_lists() lists.
  virtual KeptTokens kept() const = 0;
  virtual void reset() = 0;
};

/// `prompt`: tokens of the prompt, read at the first call; rules that choose at its end throw Usage when it is absent.
std::unique_ptr<LayerEviction> make_eviction(const Quantizer& quantizer, int layer, int threads, RopeTable& rope,
                                             const std::optional<std::int64_t>& prompt);

}  // namespace kvq
