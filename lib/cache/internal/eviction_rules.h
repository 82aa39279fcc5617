#pragma once
// The rules behind eviction.h.

#include <memory>

#include <kvq/cache/eviction.h>

namespace kvq {

std::unique_ptr<LayerEviction> make_first_recent(const EvictionRecipe& recipe, RopeTable& rope);
std::unique_ptr<LayerEviction> make_heavy_hitters(const EvictionRecipe& recipe, const KvShape& shape, int threads);
std::unique_ptr<LayerEviction> make_prompt_choice(const EvictionRecipe& recipe, const KvShape& shape, int layer,
                                                  int threads, const std::optional<std::int64_t>& prompt);

}  // namespace kvq
