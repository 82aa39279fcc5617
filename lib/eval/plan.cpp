#include <kvq/eval/plan.h>

#include <algorithm>

#include <kvq/model/loss.h>
#include <kvq/model/memory.h>
#include <kvq/model/speed.h>

namespace kvq {

namespace {

constexpr std::int64_t kProgram = 140'000'000;  // the program and its libraries: what a tiny model's run takes
// Element-wise work, encoding and comparison; SmolLM2: 17 s told and taken for 2 windows of 2048.
constexpr double kOverhead = 1.3;

std::int64_t number_bytes(Dtype dtype) { return dtype == Dtype::Bf16 ? 2 : 4; }

/// Expanded weights stay as long as there is room; the file itself is mapped and costs nothing that cannot be dropped.
std::int64_t weight_bytes(const ModelConfig& config, Dtype dtype, std::int64_t models) {
  const std::int64_t blocks = config.kv.layers * config.blocks().layer_elements();
  return std::min((config.parameters + (models - 1) * blocks) * number_bytes(dtype), available_memory_bytes() / 2);
}

/// Keys and values, and the residual stream, of one cache.
std::int64_t cache_bytes(const ModelConfig& config, Dtype dtype, std::int64_t tokens) {
  return tokens * (2 * config.kv.layers * config.kv.width() + config.hidden) * number_bytes(dtype);
}

/// What a layer needs besides.
std::int64_t layer_bytes(const ModelConfig& config, Dtype dtype, std::int64_t tokens) {
  return tokens * (3 * config.intermediate + 4 * config.hidden) * number_bytes(dtype);
}

/// Operations of a forward pass over `tokens` tokens at once with `weights` weights.
double forward_operations(const ModelConfig& config, std::int64_t weights, std::int64_t tokens) {
  const auto length = static_cast<double>(tokens);
  return 2.0 * static_cast<double>(weights) * length +
         2.0 * config.kv.layers * config.kv.heads * config.kv.head_dim * length * length;
}

}  // namespace

PerplexityPlan plan_perplexity(const ModelConfig& config, Dtype dtype, std::int64_t seqlen, std::int64_t windows,
                               std::int64_t caches, std::int64_t models) {
  const std::int64_t logits = 4 * std::min(kLogitChunk, seqlen) * config.vocab * 4;
  PerplexityPlan plan;
  plan.peak_memory_bytes = kProgram + weight_bytes(config, dtype, models) +
                           caches * cache_bytes(config, dtype, seqlen) + layer_bytes(config, dtype, seqlen) + logits;
  plan.seconds = kOverhead * static_cast<double>(windows * caches) *
                 forward_operations(config, config.parameters, seqlen) / measured_flops(dtype);
  return plan;
}

GenerationPlan plan_generation(const ModelConfig& config, Dtype dtype, const std::vector<GenerationJob>& jobs,
                               std::int64_t caches, std::int64_t models) {
  // A prompt needs the output head for its last token only. A generated token reads every weight once, and memory sets
  // the pace: about 8 GB a second.
  const std::int64_t without_head = config.parameters - std::int64_t{config.vocab} * config.hidden;
  const double flops = measured_flops(dtype);
  const double token_seconds = static_cast<double>(config.parameters * number_bytes(dtype)) / 8e9;
  std::int64_t longest = 0;
  GenerationPlan plan;
  for (const GenerationJob& job : jobs) {
    longest = std::max(longest, job.length);
    plan.prompts += job.prompts;
    plan.seconds +=
        static_cast<double>(caches * job.prompts) *
        (kOverhead * forward_operations(config, without_head, job.length) / flops + job.new_tokens * token_seconds);
  }
  // Every cache keeps what it once took.
  plan.peak_memory_bytes = kProgram + weight_bytes(config, dtype, models) +
                           caches * cache_bytes(config, dtype, longest) + layer_bytes(config, dtype, longest) +
                           4 * config.vocab;
  return plan;
}

GenerationPlan plan_passkey(const ModelConfig& config, Dtype dtype, const PasskeyOptions& options, std::int64_t caches,
                            std::int64_t models) {
  std::vector<GenerationJob> jobs;
  for (const std::int64_t length : options.lengths) {
    jobs.push_back(
        {static_cast<std::int64_t>(options.depths.size()) * options.trials, length, passkey_new_tokens(options.chat)});
  }
  return plan_generation(config, dtype, jobs, caches, models);
}

}  // namespace kvq
