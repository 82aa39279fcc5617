#pragma once
// One row of an evaluation as something that runs: which model's blocks, and which cache.

#include <memory>
#include <string>

#include <kvq/eval/perplexity.h>

namespace kvq {

/// The blocks that a row is run with: its own weights', or those of `model`.
inline Model& blocks_of(const NamedQuantizer& row, Model& model) { return row.model ? *row.model : model; }

/// The row's cache: quantized, or exact where only its weights are. Throws what check_belongs and make_cache throw.
std::unique_ptr<KvCache> cache_of(const NamedQuantizer& row, const ModelConfig& config, int threads);

}  // namespace kvq
