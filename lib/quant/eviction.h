#pragma once
// Eviction: which tokens a cache keeps, and the pure rules that choose them. Tensors, queries and softmax are the
// cache's business (lib/cache/eviction.h); here are numbers only.
//
//   first-recent  StreamingLLM (Xiao et al., arXiv 2309.17453): the first tokens and the newest ones
//   h2o           H2O (Zhang et al., arXiv 2306.14048): heavy hitters, by accumulated softmax weight, and the newest
//   snapkv        SnapKV (Li et al., arXiv 2404.14469): chosen once at the end of the prompt by what its last queries
//                 attend to, pooled over neighbours; what comes later stays
//   pyramidkv     PyramidKV (Cai et al., arXiv 2406.02069): the same with budgets that fall from layer to layer
//
// All but first-recent choose for each kv head by itself.

#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

enum class EvictionRule { None, FirstRecent, H2o, SnapKv, PyramidKv };
enum class Pooling { Max, Avg };

/// What a rule does not use is 0 (false, Max).
struct EvictionRecipe {
  EvictionRule rule = EvictionRule::None;
  int tokens = 0;                  ///< budget in tokens per layer and kv head (pyramidkv: mean over layers); 0: `share`
  double share = 0.0;              ///< budget as a share of the sequence's tokens when the choice is made, up to 1
  int first = 0;                   ///< first-recent: first tokens, part of the budget
  bool cache_positions = false;    ///< first-recent: rotary positions count kept tokens, not all
  double heavy = 0.0;              ///< h2o: share of the budget for heavy hitters; the rest is for the newest
  int observe = 0;                 ///< snapkv, pyramidkv: last queries of the prompt that vote; their tokens are kept
  Pooling pooling = Pooling::Max;  ///< snapkv, pyramidkv
  int kernel = 0;                  ///< snapkv, pyramidkv: neighbours that are pooled, odd
  double beta = 0.0;               ///< pyramidkv: the last layer keeps 1 / beta of the mean
  bool operator==(const EvictionRecipe&) const = default;
};

/// The papers' choices, budget aside.
EvictionRecipe usual_eviction(EvictionRule rule);

/// Chooses once, at the end of the prompt.
bool chooses_at_prompt_end(EvictionRule rule);
/// All kv heads of a layer keep the same tokens.
bool keeps_alike(EvictionRule rule);

/// Throws Usage, saying which field cannot be.
void validate_eviction(const EvictionRecipe& eviction);

/// Tokens that may be kept of a sequence of `length` tokens, at most all of them: ceil(share · length), but no fewer
/// than the rule needs (first + 1, observe, 1). snapkv and pyramidkv: `length` is that of the prompt.
std::int64_t eviction_budget(const EvictionRecipe& eviction, std::int64_t length);

/// The heavy hitters' part of h2o's budget: floor(heavy · budget).
std::int64_t heavy_budget(const EvictionRecipe& eviction, std::int64_t budget);

/// Budgets of all layers at the end of a prompt, observed tokens included. snapkv: all alike. pyramidkv, with b the
/// mean budget less the observed tokens: from 2b − b/beta in the first layer to b/beta in the last one in equal steps;
/// where the first would exceed what there is, it is that and the last one so much more. Rounded down; what is missing
/// to the sum goes to the first layers, a token each.
std::vector<std::int64_t> prompt_budgets(const EvictionRecipe& eviction, int layers, std::int64_t prompt);

/// Scores with stride 1 over windows of `kernel` around each; beyond the ends there is nothing (max) or there are zeros
/// (avg).
std::vector<float> pooled(std::span<const float> scores, Pooling pooling, int kernel);

/// Indices of the `count` largest, ascending; of equal ones the earlier.
std::vector<std::int64_t> largest(std::span<const float> scores, std::int64_t count);

/// Index of the smallest of the first `count`, of equal ones the earlier.
std::int64_t lightest(std::span<const float> weights, std::int64_t count);

}  // namespace kvq
