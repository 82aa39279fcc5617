#include <kvq/calib/collect_weights.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/calib/collect_common.h>
#include <kvq/calib/journal.h>
#include <kvq/calib/scaled_half.h>
#include <kvq/calib/weight_sums.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/core/plural.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kSquaresGrain = 1 << 16;

/// sums += g².
void add_squares(std::span<float> sums, const float* gradient, int threads) {
  parallel_ranges(static_cast<std::int64_t>(sums.size()), kSquaresGrain, threads,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t index = begin; index < end; ++index)
                      sums[index] += gradient[index] * gradient[index];
                  });
}

void require_finite(std::span<const float> sums, int layer, BlockMatrix matrix, int columns) {
  const auto bad = std::find_if(sums.begin(), sums.end(), [](float sum) { return !std::isfinite(sum); });
  if (bad == sums.end()) return;
  fail(ErrorKind::Numeric,
       fmt::format("layer {}: squared gradient of weight {} is {} at row {}, column {}", layer,
                   block_matrix_name(matrix), *bad, (bad - sums.begin()) / columns, (bad - sums.begin()) % columns));
}

/// The sums of the first sequences, and one sequence more at a time.
class Sums {
 public:
  Sums(Model& model, const CollectOptions& options, const RunFolder& folder, std::string identity, RunContext& context)
      : model_(model),
        options_(options),
        folder_(folder),
        identity_(std::move(identity)),
        shape_(model.config().blocks()),
        context_(context) {}

  /// Goes on from the sums over `done` sequences, unless they are damaged.
  bool resume(std::int64_t done) {
    const fs::path part = folder_.part(done - 1);
    if (!folder_.finished(done - 1)) return false;
    try {
      before_.emplace(part, shape_, identity_, done);
      before_->check();
    } catch (const Error&) {
      before_.reset();
      context_.log.warning(fmt::format("'{}' is damaged: it is computed again", part.string()));
      return false;
    }
    losses_ = before_->losses();
    return true;
  }
  void add(const Window& window, CollectResult& result) {
    const CollectClock::time_point start = CollectClock::now();
    double journal = 0;
    bool forward_is_done = false;
    const auto index = static_cast<std::int64_t>(losses_.size());
    WeightSumsWriter writer(folder_.part(index), shape_, identity_, index + 1);
    std::vector<float> sums;
    const double loss = sequence_gradients(
        model_, window.ids, options_.recompute,
        [&](const LayerGradients& layer) {
          context_.cancel.check();
          if (!std::exchange(forward_is_done, true)) context_.progress.advance(shape_.kv.layers);
          const CollectClock::time_point since = CollectClock::now();
          const c10::AutoGradMode no_grad(false);
          for (const BlockMatrix matrix : kBlockMatrices) {
            sums.assign(static_cast<std::size_t>(shape_.elements(matrix)), 0.0f);
            if (before_) before_->read(layer.layer, matrix, sums);
            const at::Tensor gradient = host_floats(layer.weight_grad[static_cast<std::size_t>(matrix)]);
            KVQ_ASSERT(gradient.is_contiguous() && gradient.numel() == shape_.elements(matrix));
            add_squares(sums, gradient.const_data_ptr<float>(), context_.threads);
            require_finite(sums, layer.layer, matrix, shape_.columns(matrix));
            writer.write(layer.layer, matrix, sums);
          }
          journal += seconds_since(since);
          context_.progress.advance(1);
        },
        {.weights = true});
    if (options_.inputs) options_.inputs->check();  // what was computed from changed files must not count as finished
    const CollectClock::time_point since = CollectClock::now();
    losses_.push_back(loss);
    writer.commit(losses_);
    before_.emplace(folder_.part(index), shape_, identity_, index + 1);
    if (index > 0) ::unlink(folder_.part(index - 1).c_str());  // killed before this, the next run does it
    journal += seconds_since(since);
    result.journal_seconds += journal;
    result.compute_seconds += seconds_since(start) - journal;
  }
  const std::vector<double>& losses() const { return losses_; }

  void assemble(const CalibrationHeader& header) {
    WeightFisherWriter file(options_.output, options_.force);
    file.write_header(header, shape_);
    context_.progress.begin("writing layers", shape_.kv.layers);
    std::vector<float> roots;
    for (int layer = 0; layer < shape_.kv.layers; ++layer) {
      context_.cancel.check();
      for (const BlockMatrix matrix : kBlockMatrices) {
        roots.resize(static_cast<std::size_t>(shape_.elements(matrix)));
        before_->read(layer, matrix, roots);
        for (float& value : roots) value = std::sqrt(value);
        file.write_matrix(
            layer, matrix,
            to_scaled_half(roots, fmt::format("layer {}, {}", layer, block_matrix_name(matrix)), context_.threads));
      }
      context_.progress.advance(1);
    }
    context_.progress.end();
    file.finish();
    before_.reset();
  }

 private:
  Model& model_;
  const CollectOptions& options_;
  const RunFolder& folder_;
  std::string identity_;
  BlockShape shape_;
  RunContext& context_;
  std::optional<WeightSumsReader> before_;
  std::vector<double> losses_;
};

}  // namespace

CollectResult collect_weight_fisher(Model& model, const std::vector<Window>& windows,
                                    const std::vector<std::string>& domains, const CollectOptions& options,
                                    RunContext& context) {
  CalibrationHeader header = header_of(model, windows, domains, options);
  check_ids(windows, model.config().vocab);
  const RunIdentity identity = identity_of(header, "weights", context.threads);
  const fs::path path = Journal::folder_of(options.output);
  CollectResult result;
  if (finished_but_for_the_journal<WeightFisherReader>(options, header, identity, result.loss)) {
    RunFolder(path, identity, "sums-", false).remove();
    result.resumed = header.sequences;
    result.file_bytes = fs::file_size(options.output);
    return result;
  }
  check_output(options.output, options.force);

  RunFolder folder(path, identity, "sums-", options.force);
  remove_stale_parts(options.output);
  Sums sums(model, options, folder, identity.sha256(), context);
  for (std::int64_t done = header.sequences; done > 0 && result.resumed == 0; --done) {
    if (sums.resume(done)) result.resumed = done;
  }
  if (result.resumed > 0) {
    for (std::int64_t earlier = 0; earlier + 1 < result.resumed; ++earlier) ::unlink(folder.part(earlier).c_str());
    context.log.info(fmt::format("resuming: '{}' holds {} of {}", path.string(), result.resumed,
                                 plural(header.sequences, "sequence")));
  }
  if (result.resumed < header.sequences) {
    context.progress.begin("passes through layers", 2 * (header.sequences - result.resumed) * header.shape.layers);
    for (std::int64_t sequence = result.resumed; sequence < header.sequences; ++sequence) {
      context.cancel.check();
      sums.add(windows[sequence], result);
    }
    context.progress.end();
  }
  const CollectClock::time_point start = CollectClock::now();
  header.loss = sums.losses();
  if (options.inputs) options.inputs->check();
  sums.assemble(header);
  folder.remove();
  result.assemble_seconds = seconds_since(start);
  result.loss = header.loss;
  result.file_bytes = fs::file_size(options.output);
  return result;
}

CollectPlan plan_weight_fisher(const ModelConfig& config, Dtype dtype, std::int64_t sequences, std::int64_t seqlen,
                               Recompute recompute, Device device) {
  CollectPlan plan =
      plan_collection(config, dtype, sequences, seqlen, recompute, QueryHeads::Joint, true, false, device);
  const BlockShape shape = config.blocks();
  const std::int64_t weights = shape.kv.layers * shape.layer_elements();
  plan.file_bytes = 2 * weights + sequences * seqlen * std::int64_t{sizeof(std::int32_t)};
  plan.journal_bytes = 2 * weights * std::int64_t{sizeof(float)};  // the sums, and the next ones beside them
  const GradientsWanted wanted{.weights = true};
  const std::int64_t more = layer_graph_bytes(config, seqlen, wanted) - layer_graph_bytes(config, seqlen);
  // Inputs that a graph keeps for the weights' sake; a layer's gradients, and one matrix's sums.
  (device == Device::Cpu ? plan.peak_memory_bytes : plan.device_memory_bytes) +=
      2 * more + 2 * shape.layer_elements() * std::int64_t{sizeof(float)};
  plan.seconds *= 1.4;  // one product more per matrix, of three or four
  return plan;
}

}  // namespace kvq
