#pragma once
// How long a context fits in a memory: counted bytes of caches (quant/footprint.h), forward and backward.

#include <cstdint>

#include <kvq/core/kv_shape.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// A quantizer that is good for counting only: no codebooks, no thresholds. Where the number of exact values varies, as
/// many as the recipe asks for. Throws Usage for shapes that the recipe cannot have.
Quantizer uncalibrated_quantizer(const Recipe& recipe, const KvShape& shape);

inline constexpr std::int64_t kLongestContext = std::int64_t{1} << 40;  ///< tokens; nothing is said of more

/// The most tokens that each of `batch` sequences can have in caches of at most `bytes` together; 0 when not even one
/// fits.
std::int64_t longest_context(const Quantizer& quantizer, std::int64_t bytes, std::int64_t batch);

}  // namespace kvq
