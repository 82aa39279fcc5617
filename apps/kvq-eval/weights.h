#pragma once
// --weights: files of quantized weights, and the rows that they make.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "kvq-eval/inputs.h"

#include <kvq/artifacts/weights_file.h>

namespace kvq::apps {

/// Reads and checks all of each file. Throws what the reader throws.
std::vector<std::shared_ptr<WeightsReader>> open_weights(const std::vector<std::filesystem::path>& paths);

/// Puts behind the rows of `inputs` (caches with the model's own weights), for each file: the unquantized cache with
/// its weights, and every quantized cache with them. Throws Mismatch for weights of another model or tokenizer.
void add_weight_rows(const InputOptions& options, const std::vector<std::shared_ptr<WeightsReader>>& weights,
                     Inputs& inputs, RunContext& context);

}  // namespace kvq::apps
