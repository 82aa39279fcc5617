#pragma once
// What an evaluation will take, told before it starts.

#include <cstdint>

#include <kvq/eval/passkey.h>
#include <kvq/model/model.h>

namespace kvq {

struct PerplexityPlan {
  std::int64_t peak_memory_bytes = 0;
  double seconds = 0;
};

/// Estimates for `caches` caches (the unquantized one included) side by side over `windows` windows of `seqlen` tokens.
/// Times one matrix product to judge the machine.
PerplexityPlan plan_perplexity(const ModelConfig& config, Dtype dtype, std::int64_t seqlen, std::int64_t windows,
                               std::int64_t caches);

struct PasskeyPlan {
  std::int64_t prompts = 0;  ///< per cache
  std::int64_t peak_memory_bytes = 0;
  double seconds = 0;
};

/// Estimates for retrieval with `caches` caches (the unquantized one included), one after another.
PasskeyPlan plan_passkey(const ModelConfig& config, Dtype dtype, const PasskeyOptions& options, std::int64_t caches);

}  // namespace kvq
