#pragma once
// A file of quantized weights as matrices that a model can be run with.

#include <memory>

#include <kvq/artifacts/weights_file.h>
#include <kvq/model/block_weights.h>

namespace kvq {

/// Reads and decodes a matrix whenever a layer is expanded: memory holds what the model keeps, no more. Throws what the
/// reader throws.
std::shared_ptr<BlockWeights> decoded_weights(std::shared_ptr<const WeightsReader> file, int threads);

}  // namespace kvq
