#include <kvq/cache/eviction.h>

#include <kvq/cache/internal/eviction_rules.h>
#include <kvq/core/error.h>

namespace kvq {

std::unique_ptr<LayerEviction> make_eviction(const Quantizer& quantizer, int layer, int threads, RopeTable& rope,
                                             const std::optional<std::int64_t>& prompt) {
  const EvictionRecipe& recipe = quantizer.recipe.eviction;
  switch (recipe.rule) {
    case EvictionRule::FirstRecent:
      return make_first_recent(recipe, rope);
    case EvictionRule::H2o:
      return make_heavy_hitters(recipe, quantizer.shape, threads);
    case EvictionRule::SnapKv:
    case EvictionRule::PyramidKv:
      return make_prompt_choice(recipe, quantizer.shape, layer, threads, prompt);
    case EvictionRule::None:
      break;
  }
  KVQ_ASSERT(false);
  return nullptr;
}

}  // namespace kvq
