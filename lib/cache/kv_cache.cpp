#include <kvq/cache/kv_cache.h>

#include <kvq/cache/cuda_plugin.h>
#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>

namespace kvq {

const std::vector<std::string>& cache_kind_names() {
  static const std::vector<std::string> names = {"simulated", "packed", "cuda"};
  return names;
}

std::unique_ptr<KvCache> make_cache(CacheKind kind, std::shared_ptr<const Quantizer> quantizer, int threads) {
  if (kind == CacheKind::Packed) return std::make_unique<PackedCache>(std::move(quantizer), threads);
  if (kind == CacheKind::Cuda) return make_cuda_cache(quantizer);
  return std::make_unique<SimulatedCache>(std::move(quantizer), threads);
}

}  // namespace kvq
