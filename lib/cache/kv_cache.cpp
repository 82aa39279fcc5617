#include <kvq/cache/kv_cache.h>

#include <algorithm>

#include <kvq/cache/cuda_plugin.h>
#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>

namespace kvq {

const std::vector<std::string>& cache_kind_names() {
  static const std::vector<std::string> names = {"simulated", "packed", "cuda"};
  return names;
}

bool CacheParts::has(int layer, Side which) const {
  return (layers.empty() || std::binary_search(layers.begin(), layers.end(), layer)) && (!side || *side == which);
}

std::unique_ptr<KvCache> make_cache(CacheKind kind, std::shared_ptr<const Quantizer> quantizer, int threads,
                                    const CacheParts& parts) {
  if (kind != CacheKind::Simulated && !parts.all())
    fail(ErrorKind::Usage, "a packed cache holds all layers and sides; single ones are for the simulated cache");
  if (kind == CacheKind::Packed) return std::make_unique<PackedCache>(std::move(quantizer), threads);
  if (kind == CacheKind::Cuda) return make_cuda_cache(quantizer);
  return std::make_unique<SimulatedCache>(std::move(quantizer), threads, parts);
}

}  // namespace kvq
