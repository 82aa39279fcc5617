#include <kvq/eval/plan.h>

#include <algorithm>

#include <kvq/model/loss.h>
#include <kvq/model/memory.h>
#include <kvq/model/speed.h>

namespace kvq {

PerplexityPlan plan_perplexity(const ModelConfig& config, Dtype dtype, std::int64_t seqlen, std::int64_t windows,
                               std::int64_t caches) {
  const KvShape& shape = config.kv;
  const std::int64_t number_bytes = dtype == Dtype::Bf16 ? 2 : 4;
  PerplexityPlan plan;
  // Expanded weights stay as long as there is room; the file itself is mapped and costs nothing that cannot be dropped.
  const std::int64_t weights = std::min(config.parameters * number_bytes, available_memory_bytes() / 2);
  const std::int64_t stored = 2 * shape.layers * seqlen * shape.width() * number_bytes;
  const std::int64_t residual = seqlen * config.hidden * number_bytes;
  const std::int64_t layer = seqlen * (3 * config.intermediate + 4 * config.hidden) * number_bytes;
  const std::int64_t logits = 4 * std::min(kLogitChunk, seqlen) * config.vocab * 4;
  constexpr std::int64_t kProgram = 140'000'000;  // the program and its libraries: what a tiny model's run takes
  plan.peak_memory_bytes = kProgram + weights + caches * (stored + residual) + layer + logits;

  const double products = 2.0 * static_cast<double>(config.parameters) * static_cast<double>(seqlen);
  const double attention =
      2.0 * shape.layers * shape.heads * shape.head_dim * static_cast<double>(seqlen) * static_cast<double>(seqlen);
  constexpr double kOverhead =
      1.3;  // element-wise work, encoding and comparison; SmolLM2: 17 s told and taken for 2 windows of 2048
  plan.seconds = kOverhead * static_cast<double>(windows * caches) * (products + attention) / measured_flops(dtype);
  return plan;
}

}  // namespace kvq
