#pragma once
// A cache that stores what a packed one would give back: keys and values are encoded and decoded on the way in, whole
// windows at once. The fast teacher-forced path, for every recipe.
//
// Tokens that wait to be quantized (recent, flush, groups of tokens) are held as exact tokens are, fp16 of x ·
// 2^-exponent, and quantized from that, as a cache with no other copy must. Every query sees what the cache held once
// its own token was appended: a token that this fills a group with is quantized for it, too.
//
// Encoding is work of the CPU. Where the model is computed on a GPU keys and values are copied over and back for it (a
// call's keys and values, fp32, each way), and attention takes place on the GPU; that of recipes that evict or have
// tiers (layer_tiers.h: tokens are re-encoded while queries come, which are answered one by one) on the CPU.
//
// Recipes that evict (eviction.h) attend over the tokens that are kept. All tokens stay in memory for the simulation;
// what is counted is what is kept.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/cache/kv_cache.h>
#include <kvq/model/rope.h>
#include <kvq/quant/eviction_footprint.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>
#include <kvq/quant/tier_footprint.h>

namespace kvq {

/// State of one sequence. Holds keys after RoPE and values, dequantized, in the dtype of the queries and on their
/// device; encoding is fp32 whatever the dtype. Not thread-safe.
class SimulatedCache final : public KvCache {
 public:
  /// Throws Mismatch when the quantizer's parts do not fit each other, Usage for shapes that its recipe cannot have. An
  /// unquantized recipe keeps everything as it is. `parts`: quantize these only; then there is no footprint() to ask
  /// for. Throws Usage for a layer that the quantizer does not have, and for one side of a recipe that evicts.
  SimulatedCache(std::shared_ptr<const Quantizer> quantizer, int threads, CacheParts parts = {});
  ~SimulatedCache() override;
  /// Throws Numeric naming layer, side, token and channel for NaN/Inf and for exact values that overflow; Usage when
  /// range=window gets a window in more than one call; Mismatch for tensors of another shape than the quantizer's.
  at::Tensor attend(const AttentionInput& input) override;
  void reset() override;
  /// Needed where the recipe chooses at the end of the prompt: attend() throws Usage without it.
  void set_prompt(std::int64_t tokens) override { prompt_ = tokens; }

  /// Positions that a layer keeps now, ascending, one list per kv head or a single one; for recipes that evict.
  KeptTokens kept(int layer) const;

  /// Positions of each tier in a layer now, sinks left out; for recipes with tiers.
  TierTokens tiers(int layer) const;
  /// Keys (rotated) or values of a layer as they are held for the next query, `[tokens, kv_heads, head_dim]`; not while
  /// tokens wait to be quantized.
  at::Tensor held(int layer, Side side) const;

  /// What a packed cache with the present content occupies. All layers must have seen the same tokens.
  Footprint footprint() const;
  std::int64_t bytes() const override { return footprint().total(); }
  std::int64_t tokens() const override;

 private:
  struct Tokens;
  struct Layer;
  void append(const at::Tensor& x, const AttentionInput& input, Side side);
  void settle(Tokens& tokens, const at::Tensor& x, int layer, Side side, std::int64_t first, std::int64_t sinks,
              bool rounded);
  /// Unquantized parts wait for nothing.
  ExactWindow window_of(int layer, Side side) const;

  std::shared_ptr<const Quantizer> quantizer_;
  int threads_;
  CacheParts parts_;
  RopeTables tables_;
  std::optional<std::int64_t> prompt_;
  std::vector<Layer> layers_;
};

}  // namespace kvq
