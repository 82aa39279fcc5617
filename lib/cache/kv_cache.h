#pragma once
// The caches that an evaluation can run on, behind one interface.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvq/core/side.h>
#include <kvq/model/attention_backend.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// The cache of one sequence, all layers.
class KvCache : public AttentionBackend {
 public:
  virtual std::int64_t tokens() const = 0;
  /// What the cache occupies, or would occupy if its bits were packed. All layers must have seen the same tokens.
  virtual std::int64_t bytes() const = 0;
};

enum class CacheKind {
  Simulated,  ///< keys and values are quantized and kept dequantized: fast where whole windows are given at once
  Packed,     ///< the bits themselves, on the CPU
  Cuda,       ///< the bits themselves, on the GPU
};

/// Names on the command line, in the order of CacheKind.
const std::vector<std::string>& cache_kind_names();

/// Which layers and sides are quantized; the rest is kept as it is. For studies of sensitivity: what is only partly
/// quantized is no cache whose bytes could be counted.
struct CacheParts {
  std::vector<int> layers;   ///< ascending; empty: all
  std::optional<Side> side;  ///< absent: both
  bool all() const { return layers.empty() && !side; }
  bool has(int layer, Side which) const;
  bool operator==(const CacheParts&) const = default;
};

/// Throws what the constructors of SimulatedCache and PackedCache and make_cuda_cache() throw; Usage for parts of a
/// cache that is not simulated.
std::unique_ptr<KvCache> make_cache(CacheKind kind, std::shared_ptr<const Quantizer> quantizer, int threads,
                                    const CacheParts& parts = {});

}  // namespace kvq
