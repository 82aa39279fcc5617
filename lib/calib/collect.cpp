#include <kvq/calib/collect.h>

#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/assemble.h>
#include <kvq/calib/attention_mass.h>
#include <kvq/calib/collect_common.h>
#include <kvq/calib/forward_pass.h>
#include <kvq/calib/journal.h>
#include <kvq/calib/key_metric.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/job_queue.h>
#include <kvq/core/plural.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

using Part = SequenceLayout::Part;

/// Sum over tokens and query heads of q qᵀ, per kv head: fp64 `[kv_heads, head_dim, head_dim]`, on the CPU.
at::Tensor query_moment(const at::Tensor& query, std::int64_t kv_heads) {
  const std::int64_t tokens = query.size(0), head_dim = query.size(2), group = query.size(1) / kv_heads;
  if (!takes_cpu_loops(query)) {
    const at::Tensor rows = query.view({tokens, kv_heads, group * head_dim})
                                .permute({1, 0, 2})
                                .reshape({kv_heads, tokens * group, head_dim});
    return at::bmm(rows.transpose(1, 2), rows).to(at::kCPU).to(at::kDouble).contiguous();
  }
  at::Tensor moment = at::empty({kv_heads, head_dim, head_dim}, query.options().dtype(at::kDouble));
  at::parallel_for(0, kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::AutoGradMode no_grad(false);
    for (std::int64_t kv_head = begin; kv_head < end; ++kv_head) {
      const at::Tensor rows = query.narrow(1, kv_head * group, group).reshape({tokens * group, head_dim});
      moment.select(0, kv_head).copy_(at::mm(rows.t(), rows));
    }
  });
  return moment;
}

/// What is stored of a layer, on the CPU; gradients only where there are any.
struct LayerParts {
  int layer = 0;
  at::Tensor key, value, key_grad, value_grad, query_moment;
  std::vector<float> attention_mass;
  // For the key's metric.
  at::Tensor query;
  std::vector<double> log_sums;
};

/// The sequences of a run into the journal. Where the model is computed on a GPU the journal is written, and what takes
/// the CPU's loops is computed, while the GPU goes on.
class SequenceRun {
 public:
  SequenceRun(Model& model, const CollectOptions& options, RunContext& context)
      : model_(model),
        options_(options),
        context_(context),
        tables_(model.config().rope),
        writing_tables_(model.config().rope),
        writing_(options.overlap ? kWaitingLayers : 0) {}

  void run(const Window& window, std::int64_t sequence, std::shared_ptr<SequenceWriter> writer, CollectResult& result) {
    const CollectClock::time_point start = CollectClock::now();
    Seconds seconds;
    const double loss = options_.gradients ? run_both_ways(window, sequence, writer, seconds)
                                           : run_forward(window, sequence, writer, seconds);
    const CollectClock::time_point since = CollectClock::now();
    writing_.run([this, writer, loss] {
      if (options_.inputs) options_.inputs->check();  // what was computed from changed files must not count as finished
      writer->commit(loss);
    });
    seconds.journal += seconds_since(since);
    result.statistics_seconds += seconds.statistics;
    result.journal_seconds += seconds.journal;
    result.compute_seconds += seconds_since(start) - seconds.statistics - seconds.journal;
  }
  /// All of it is in the journal.
  void finish(CollectResult& result) {
    const CollectClock::time_point since = CollectClock::now();
    writing_.finish();
    result.journal_seconds += seconds_since(since);
  }

 private:
  static constexpr std::size_t kWaitingLayers = 8;
  using Writer = std::shared_ptr<SequenceWriter>;
  struct Seconds {
    double statistics = 0, journal = 0;
  };

  template <class Work>
  static auto timed(double& seconds, const Work& work) {
    const CollectClock::time_point since = CollectClock::now();
    auto result = work();
    seconds += seconds_since(since);
    return result;
  }

  double run_forward(const Window& window, std::int64_t sequence, const Writer& writer, Seconds& seconds) {
    return sequence_forward(model_, window.ids, [&](const LayerTensors& layer) {
      context_.cancel.check();
      LayerParts parts = timed(seconds.statistics, [&] { return forward_parts(layer, *writer); });
      store(std::move(parts), sequence, writer, seconds);
      context_.progress.advance(1);
    });
  }

  double run_both_ways(const Window& window, std::int64_t sequence, const Writer& writer, Seconds& seconds) {
    bool forward_is_done = false;
    const bool joint = options_.query_heads == QueryHeads::Joint;
    const auto take = [&](const LayerGradients& layer) {
      context_.cancel.check();
      if (!std::exchange(forward_is_done, true)) context_.progress.advance(model_.config().kv.layers);
      const c10::AutoGradMode no_grad(false);
      LayerParts parts = timed(seconds.statistics, [&] {
        return forward_parts({layer.layer, layer.query, layer.key, layer.value}, *writer);
      });
      const auto gradient = [&](const at::Tensor& whole, const at::Tensor& of_heads) {
        return host_floats(joint ? whole : over_query_heads(of_heads, whole.size(1), options_.query_heads));
      };
      parts.key_grad = gradient(layer.key_grad, layer.key_head_grad);
      parts.value_grad = gradient(layer.value_grad, layer.value_head_grad);
      store(std::move(parts), sequence, writer, seconds);
      context_.progress.advance(1);
    };
    return sequence_gradients(model_, window.ids, options_.recompute, take, {.query_heads = !joint});
  }

  /// All but gradients.
  LayerParts forward_parts(const LayerTensors& layer, const SequenceWriter& writer) {
    LayerParts parts;
    parts.layer = layer.layer;
    parts.query_moment = query_moment(layer.query, layer.key.size(1));
    // The metric takes 1 - w of softmax weights, which scores rounded to bf16 do not leave right where w is nearly 1.
    const bool metric = writer.layout().metric, bf16 = options_.dtype == Dtype::Bf16 && !metric;
    parts.attention_mass =
        attention_mass(layer.query, layer.key, tables_.of(layer.layer), bf16,
                       model_.config().rope.window_of(layer.layer), metric ? &parts.log_sums : nullptr);
    parts.key = host_floats(layer.key);
    parts.value = host_floats(layer.value);
    if (metric) parts.query = host_floats(layer.query);
    return parts;
  }

  void store(LayerParts parts, std::int64_t sequence, const Writer& writer, Seconds& seconds) {
    const CollectClock::time_point since = CollectClock::now();
    writing_.run([this, parts = std::make_shared<const LayerParts>(std::move(parts)), sequence, writer] {
      const c10::AutoGradMode no_grad(false);
      const int layer = parts->layer;
      const auto write = [&](Part part, const auto* data) { writer->write(layer, part, data); };
      write(Part::Key, parts->key.const_data_ptr<float>());
      write(Part::Value, parts->value.const_data_ptr<float>());
      if (parts->key_grad.defined()) {
        write(Part::KeyGrad, parts->key_grad.const_data_ptr<float>());
        write(Part::ValueGrad, parts->value_grad.const_data_ptr<float>());
      }
      write(Part::QueryMoment, parts->query_moment.const_data_ptr<double>());
      write(Part::AttentionMass, parts->attention_mass.data());
      if (!writer->layout().metric) return;
      const ModelRope& rope = model_.config().rope;
      const std::vector<std::int64_t> tokens = metric_tokens(sequence, parts->key.size(0));
      write(Part::KeyMetric, key_metric(parts->query, parts->key, rope.of(layer), writing_tables_.of(layer),
                                        rope.window_of(layer), parts->log_sums, tokens)
                                 .data());
    });
    seconds.journal += seconds_since(since);
  }

  Model& model_;
  const CollectOptions& options_;
  RunContext& context_;
  RopeTables tables_, writing_tables_;  ///< a queue's thread has tables of its own
  JobQueue writing_;                    ///< the last member: its thread ends before the others are gone
};

}  // namespace

void check_output(const fs::path& output, bool force) { AtomicFile(output, force); }

CollectResult collect_calibration(Model& model, const std::vector<Window>& windows,
                                  const std::vector<std::string>& domains, const CollectOptions& options,
                                  RunContext& context) {
  CalibrationHeader header = header_of(model, windows, domains, options);
  check_ids(windows, model.config().vocab);
  const RunIdentity identity = identity_of(header, "keys and values", context.threads);
  const SequenceLayout layout{header.shape, header.seqlen, header.gradients, header.metrics};
  const fs::path folder = Journal::folder_of(options.output);
  CollectResult result;
  if (finished_but_for_the_journal<CalibrationReader>(options, header, identity, result.loss)) {
    Journal(folder, identity, layout, false).remove();
    result.resumed = header.sequences;
    result.file_bytes = fs::file_size(options.output);
    return result;
  }
  check_output(options.output, options.force);

  Journal journal(folder, identity, layout, options.force);
  remove_stale_parts(options.output);
  std::vector<std::int64_t> missing;
  for (std::int64_t sequence = 0; sequence < header.sequences; ++sequence) {
    context.cancel.check();
    if (journal.finished(sequence, context.threads)) continue;
    if (journal.there(sequence))
      context.log.warning(
          fmt::format("sequence {} in '{}' is damaged: it is computed again", sequence, folder.string()));
    missing.push_back(sequence);
  }
  result.resumed = header.sequences - static_cast<std::int64_t>(missing.size());
  if (result.resumed > 0) {
    context.log.info(fmt::format("resuming: '{}' holds {} of {}", folder.string(), result.resumed,
                                 plural(header.sequences, "sequence")));
  }
  if (!missing.empty()) {
    // Every layer of every sequence counts, forward and backward: long sequences of large models take minutes each.
    context.progress.begin(
        "passes through layers",
        (header.gradients ? 2 : 1) * static_cast<std::int64_t>(missing.size()) * header.shape.layers);
    SequenceRun run(model, options, context);
    for (std::int64_t sequence : missing) {
      context.cancel.check();
      run.run(windows[sequence], sequence, journal.begin(sequence), result);
      context.log.debug(
          fmt::format("sequence {}: {:.1f} s so far", sequence, result.compute_seconds + result.journal_seconds));
    }
    run.finish(result);
    context.progress.end();
  }

  const CollectClock::time_point start = CollectClock::now();
  std::vector<SequenceReader> sequences;
  for (std::int64_t sequence = 0; sequence < header.sequences; ++sequence) {
    sequences.push_back(journal.open(sequence));
    header.loss.push_back(sequences.back().loss());
  }
  if (options.inputs) options.inputs->check();
  assemble_calibration(options.output, options.force, header, layout, sequences, model, context);
  sequences.clear();
  journal.remove();
  result.assemble_seconds = seconds_since(start);
  result.loss = header.loss;
  result.file_bytes = fs::file_size(options.output);
  return result;
}

}  // namespace kvq
