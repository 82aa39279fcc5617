#include <kvq/calib/collect.h>

#include <utility>

#include <ATen/Parallel.h>
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
#include <kvq/core/plural.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

using Part = SequenceLayout::Part;

/// Sum over tokens and query heads of q qᵀ, per kv head: fp64 `[kv_heads, head_dim, head_dim]`.
at::Tensor query_moment(const at::Tensor& query, std::int64_t kv_heads) {
  const std::int64_t tokens = query.size(0), head_dim = query.size(2), group = query.size(1) / kv_heads;
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

/// One sequence into the journal.
class SequenceRun {
 public:
  SequenceRun(Model& model, const CollectOptions& options, RunContext& context)
      : model_(model), options_(options), context_(context), tables_(model.config().rope) {}

  void run(const Window& window, std::int64_t sequence, SequenceWriter writer, CollectResult& result) {
    const CollectClock::time_point start = CollectClock::now();
    double journal = 0;
    const double loss = options_.gradients ? run_both_ways(window, sequence, writer, journal)
                                           : run_forward(window, sequence, writer, journal);
    if (options_.inputs) options_.inputs->check();  // what was computed from changed files must not count as finished
    const CollectClock::time_point since = CollectClock::now();
    writer.commit(loss);
    journal += seconds_since(since);
    result.journal_seconds += journal;
    result.compute_seconds += seconds_since(start) - journal;
  }

 private:
  double run_forward(const Window& window, std::int64_t sequence, SequenceWriter& writer, double& journal) {
    return sequence_forward(model_, window.ids, [&](const LayerTensors& layer) {
      context_.cancel.check();
      const CollectClock::time_point since = CollectClock::now();
      write_forward(layer, sequence, writer);
      journal += seconds_since(since);
      context_.progress.advance(1);
    });
  }

  double run_both_ways(const Window& window, std::int64_t sequence, SequenceWriter& writer, double& journal) {
    bool forward_is_done = false;
    const bool joint = options_.query_heads == QueryHeads::Joint;
    const auto store = [&](const LayerGradients& layer) {
      context_.cancel.check();
      if (!std::exchange(forward_is_done, true)) context_.progress.advance(model_.config().kv.layers);
      const CollectClock::time_point since = CollectClock::now();
      const c10::AutoGradMode no_grad(false);
      write_forward({layer.layer, layer.query, layer.key, layer.value}, sequence, writer);
      const auto gradient = [&](const at::Tensor& whole, const at::Tensor& parts) {
        return joint ? whole : over_query_heads(parts, whole.size(1), options_.query_heads);
      };
      writer.write(layer.layer, Part::KeyGrad, gradient(layer.key_grad, layer.key_head_grad).const_data_ptr<float>());
      writer.write(layer.layer, Part::ValueGrad,
                   gradient(layer.value_grad, layer.value_head_grad).const_data_ptr<float>());
      journal += seconds_since(since);
      context_.progress.advance(1);
    };
    return sequence_gradients(model_, window.ids, options_.recompute, store, {.query_heads = !joint});
  }

  /// All but gradients.
  void write_forward(const LayerTensors& layer, std::int64_t sequence, SequenceWriter& writer) {
    const ModelRope& rope = model_.config().rope;
    const std::int64_t seen = rope.window_of(layer.layer);
    RopeTable& table = tables_.of(layer.layer);
    writer.write(layer.layer, Part::Key, layer.key.const_data_ptr<float>());
    writer.write(layer.layer, Part::Value, layer.value.const_data_ptr<float>());
    writer.write(layer.layer, Part::QueryMoment, query_moment(layer.query, layer.key.size(1)).const_data_ptr<double>());
    // The metric takes 1 - w of softmax weights, which scores rounded to bf16 do not leave right where w is nearly 1.
    const bool metric = writer.layout().metric, bf16 = options_.dtype == Dtype::Bf16 && !metric;
    writer.write(layer.layer, Part::AttentionMass,
                 attention_mass(layer.query, layer.key, table, bf16, seen, metric ? &log_sums_ : nullptr).data());
    if (!metric) return;
    const std::vector<std::int64_t> tokens = metric_tokens(sequence, layer.key.size(0));
    writer.write(layer.layer, Part::KeyMetric,
                 key_metric(layer.query, layer.key, rope.of(layer.layer), table, seen, log_sums_, tokens).data());
  }

  Model& model_;
  const CollectOptions& options_;
  RunContext& context_;
  RopeTables tables_;
  std::vector<double> log_sums_;
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
    if (!journal.finished(sequence)) missing.push_back(sequence);
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
