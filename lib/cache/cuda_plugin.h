#pragma once
// The cache on the GPU lives in a library of its own, libkvq_cuda.so beside libkvq.so, which is opened when it is asked
// for: one build runs with and without a GPU.

#include <memory>

#include <kvq/cache/kv_cache.h>

namespace kvq {

/// The one function that the plugin exports, under the name kCudaCacheFactory. Throws what make_cuda_cache() throws.
using CudaCacheFactory = KvCache*(const std::shared_ptr<const Quantizer>& quantizer);
inline constexpr char kCudaCacheFactory[] = "kvq_make_cuda_cache";

/// Packed bits on the current CUDA device. Throws Device when there is no plugin or no GPU, or one that cannot run the
/// kernels; Usage for recipes that the kernels do not know; Mismatch for shapes that they do not.
std::unique_ptr<KvCache> make_cuda_cache(const std::shared_ptr<const Quantizer>& quantizer);

}  // namespace kvq
