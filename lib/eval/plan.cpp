#include <kvq/eval/plan.h>

#include <algorithm>

#include <kvq/model/backward.h>
#include <kvq/model/loss.h>
#include <kvq/model/memory.h>
#include <kvq/model/speed.h>

namespace kvq {

namespace {

constexpr std::int64_t kProgram = 140'000'000;  // the program and its libraries: what a tiny model's run takes
// Element-wise work, encoding and comparison; SmolLM2: 17 s told and taken for 2 windows of 2048.
constexpr double kOverhead = 1.3;
constexpr std::int64_t kCudaProgram = 2'000'000'000;  // libtorch's CUDA part, on the CPU's side
constexpr double kLaunches = 1.5e-3;                  // of a pass through a layer on a GPU, however small it is

std::int64_t number_bytes(Dtype dtype) { return dtype == Dtype::Bf16 ? 2 : 4; }

/// Expanded weights stay as long as there is room; the file itself is mapped and costs nothing that cannot be dropped.
std::int64_t weight_bytes(const ModelConfig& config, Dtype dtype, std::int64_t models, Device device) {
  const std::int64_t blocks = config.kv.layers * config.blocks().layer_elements();
  return std::min((config.parameters + (models - 1) * blocks) * number_bytes(dtype),
                  available_memory_bytes(device) / 2);
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

/// `model`: what the model and its caches take on the device. On a GPU its scratch memory comes on top, and the CPU has
/// the program and a layer's weights while they are expanded.
template <typename Plan>
void set_memory(Plan& plan, const ModelConfig& config, Device device, std::int64_t tokens, std::int64_t model) {
  plan.peak_memory_bytes =
      device == Device::Cpu ? kProgram + model : kCudaProgram + 4 * config.blocks().layer_elements();
  if (device != Device::Cpu) plan.device_memory_bytes = model + device_scratch_bytes(config, tokens);
}

double launch_seconds(const ModelConfig& config, Device device, std::int64_t passes) {
  return device == Device::Cpu ? 0.0 : kLaunches * static_cast<double>(passes * config.kv.layers);
}

}  // namespace

PerplexityPlan plan_perplexity(const ModelConfig& config, Dtype dtype, std::int64_t seqlen, std::int64_t windows,
                               std::int64_t caches, std::int64_t models, Device device) {
  const std::int64_t logits = 4 * std::min(kLogitChunk, seqlen) * config.vocab * 4;
  PerplexityPlan plan;
  set_memory(plan, config, device, seqlen,
             weight_bytes(config, dtype, models, device) + caches * cache_bytes(config, dtype, seqlen) +
                 layer_bytes(config, dtype, seqlen) + logits);
  plan.seconds = kOverhead * static_cast<double>(windows * caches) *
                     forward_operations(config, config.parameters, seqlen) / measured_flops(dtype, device) +
                 launch_seconds(config, device, windows * caches);
  return plan;
}

GenerationPlan plan_generation(const ModelConfig& config, Dtype dtype, const std::vector<GenerationJob>& jobs,
                               std::int64_t caches, std::int64_t models, Device device) {
  // A prompt needs the output head for its last token only. A generated token reads every weight once, and memory sets
  // the pace: about 8 GB a second, of a GPU a thousand.
  const std::int64_t without_head = config.parameters - std::int64_t{config.vocab} * config.hidden;
  const double flops = measured_flops(dtype, device);
  const double token_seconds = device == Device::Cpu
                                   ? static_cast<double>(config.parameters * number_bytes(dtype)) / 8e9
                                   : static_cast<double>(config.parameters * number_bytes(dtype)) / 1e12;
  std::int64_t longest = 0;
  GenerationPlan plan;
  for (const GenerationJob& job : jobs) {
    longest = std::max(longest, job.length);
    plan.prompts += job.prompts;
    plan.seconds += static_cast<double>(caches * job.prompts) *
                    (kOverhead * forward_operations(config, without_head, job.length) / flops +
                     job.new_tokens * token_seconds + launch_seconds(config, device, 1 + job.new_tokens));
  }
  // Every cache keeps what it once took.
  set_memory(plan, config, device, longest,
             weight_bytes(config, dtype, models, device) + caches * cache_bytes(config, dtype, longest) +
                 layer_bytes(config, dtype, longest) + 4 * config.vocab);
  return plan;
}

GenerationPlan plan_passkey(const ModelConfig& config, Dtype dtype, const PasskeyOptions& options, std::int64_t caches,
                            std::int64_t models, Device device) {
  std::vector<GenerationJob> jobs;
  for (const std::int64_t length : options.lengths) {
    jobs.push_back(
        {static_cast<std::int64_t>(options.depths.size()) * options.trials, length, passkey_new_tokens(options.chat)});
  }
  return plan_generation(config, dtype, jobs, caches, models, device);
}

}  // namespace kvq
