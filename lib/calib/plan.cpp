// What a run will take, told before it starts.
#include <algorithm>

#include <kvq/calib/collect.h>
#include <kvq/calib/sequence_file.h>
#include <kvq/model/loss.h>
#include <kvq/model/memory.h>
#include <kvq/model/speed.h>

namespace kvq {

namespace {

constexpr std::int64_t kCudaProgram = 2'000'000'000;  // libtorch's CUDA part and the driver's share, on the CPU's side
constexpr std::int64_t kLayersOnTheirWay = 9;         // one that is written, eight that wait for it
constexpr double kLaunches = 2e-3;                    // of a pass through a layer, however small it is
constexpr double kFileBytesPerSecond = 3e8;           // journal read again, compressed and written

}  // namespace

CollectPlan plan_collection(const ModelConfig& config, Dtype dtype, std::int64_t sequences, std::int64_t seqlen,
                            Recompute recompute, QueryHeads query_heads, bool gradients, bool metrics, Device device) {
  const KvShape& shape = config.kv;
  CollectPlan plan;
  plan.sequences = sequences;
  plan.seqlen = seqlen;
  const SequenceLayout layout{shape, seqlen, gradients, metrics || !gradients};
  plan.journal_bytes = sequences * layout.file_bytes();
  // Halves instead of floats, and one sum of moments instead of one per sequence.
  const std::int64_t halves = (gradients ? 2 : 1) * layout.tensor_bytes();
  const std::int64_t per_layer =
      sequences * (halves + layout.mass_bytes()) + (layout.metric ? 3 : 1) * layout.moment_bytes();
  plan.file_bytes = shape.layers * per_layer + sequences * seqlen * std::int64_t{sizeof(std::int32_t)};

  const std::int64_t available = available_memory_bytes(device);
  const std::int64_t weights = std::min(config.parameters * (dtype == Dtype::Bf16 ? 2 : 4), available / 2);
  const std::int64_t boundaries = std::int64_t{shape.layers} * seqlen * config.hidden * 4;
  const std::int64_t graph = layer_graph_bytes(config, seqlen, {.query_heads = query_heads != QueryHeads::Joint});
  const std::int64_t logits = 2 * std::min(kLogitChunk, seqlen) * config.vocab * 4;
  const std::int64_t lean = weights + boundaries + 2 * graph + logits;
  const std::int64_t full = weights + boundaries + (shape.layers + 1) * graph + logits;
  // Forward only: the state before and after a layer, and what it computes.
  const std::int64_t running = !gradients ? weights + 2 * boundaries / shape.layers + graph + logits
                               : recompute == Recompute::Layer ? lean
                               : recompute == Recompute::None  ? full
                                                               : std::clamp(available / 10 * 9, lean, full);
  // One tensor as floats, four (two) as halves.
  const std::int64_t assembling = sequences * layout.tensor_bytes() * (gradients ? 3 : 2);
  if (device == Device::Cpu) {
    plan.peak_memory_bytes = std::max(running, assembling);
  } else {
    plan.device_memory_bytes = running + device_scratch_bytes(config, seqlen);
    // Libraries; a layer's weights while they are expanded, layers on their way to the journal.
    const std::int64_t layer_weights = config.blocks().layer_elements() * 4;
    plan.peak_memory_bytes =
        kCudaProgram + std::max(layer_weights + kLayersOnTheirWay * layout.layer_bytes(), assembling);
  }

  // Forward 2 operations per weight and token, backward to the activations as many again; once more where layers are
  // run twice.
  const double products = 2.0 * static_cast<double>(config.parameters) * static_cast<double>(seqlen);
  const double attention =
      2.0 * shape.layers * shape.heads * shape.head_dim * static_cast<double>(seqlen) * static_cast<double>(seqlen);
  const double passes = !gradients ? 1.0 : recompute == Recompute::Layer ? 3.0 : 2.0;
  constexpr double kOverhead = 1.6;  // element-wise work, statistics, journal and assembly, as measured on small models
  plan.seconds =
      kOverhead * static_cast<double>(sequences) * passes * (products + attention) / measured_flops(dtype, device);
  if (device != Device::Cpu) {
    plan.seconds += static_cast<double>(sequences) * passes * shape.layers * kLaunches;
    plan.seconds += static_cast<double>(plan.file_bytes) / kFileBytesPerSecond;
  }
  return plan;
}

}  // namespace kvq
