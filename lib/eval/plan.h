#pragma once
// What an evaluation will take, told before it starts.

#include <cstdint>
#include <vector>

#include <kvq/eval/passkey.h>
#include <kvq/model/model.h>

namespace kvq {

struct PerplexityPlan {
  std::int64_t peak_memory_bytes = 0;    ///< of the CPU
  std::int64_t device_memory_bytes = 0;  ///< of the device, where it is another one
  double seconds = 0;
};

/// Estimates for `caches` caches (the unquantized one included) side by side over `windows` windows of `seqlen` tokens.
/// `models`: sets of weights that are run, the model's own included. Times one matrix product to judge the device.
PerplexityPlan plan_perplexity(const ModelConfig& config, Dtype dtype, std::int64_t seqlen, std::int64_t windows,
                               std::int64_t caches, std::int64_t models = 1, Device device = Device::Cpu);

/// Prompts of one length, each continued.
struct GenerationJob {
  std::int64_t prompts = 0, length = 0;
  int new_tokens = 0;
};
struct GenerationPlan {
  std::int64_t prompts = 0;  ///< per cache
  std::int64_t peak_memory_bytes = 0, device_memory_bytes = 0;
  double seconds = 0;
};

/// Estimates for greedy continuations with `caches` caches (the unquantized one included), one after another.
GenerationPlan plan_generation(const ModelConfig& config, Dtype dtype, const std::vector<GenerationJob>& jobs,
                               std::int64_t caches, std::int64_t models = 1, Device device = Device::Cpu);

/// The same for retrieval.
GenerationPlan plan_passkey(const ModelConfig& config, Dtype dtype, const PasskeyOptions& options, std::int64_t caches,
                            std::int64_t models = 1, Device device = Device::Cpu);

}  // namespace kvq
