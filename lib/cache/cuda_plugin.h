#pragma once
// The cache on the GPU lives in a library of its own, libkvq_cuda.so beside libkvq.so, which is opened when it is asked
// for: one build runs with and without a GPU.

#include <memory>

#include <kvq/cache/kv_cache.h>

namespace kvq {

/// The one function that the plugin exports, under the name kCudaCacheFactory. Throws what make_cuda_cache() throws.
/// Without a quantizer it makes nothing, and throws where it could make nothing.
using CudaCacheFactory = KvCache*(const std::shared_ptr<const Quantizer>& quantizer);
inline constexpr char kCudaCacheFactory[] = "kvq_make_cuda_cache";

/// Packed bits on the current CUDA device. Throws Device when there is no plugin or no GPU, or one that cannot run the
/// kernels; Usage for recipes that the kernels do not know; Mismatch for shapes that they do not.
std::unique_ptr<KvCache> make_cuda_cache(const std::shared_ptr<const Quantizer>& quantizer);

/// Throws Device where make_cuda_cache() would.
void require_cuda_cache();

}  // namespace kvq
