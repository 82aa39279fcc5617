#include <kvq/eval/perplexity.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/InferenceMode.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/eval/variant.h>
#include <kvq/model/rope.h>
#include <kvq/quant/footprint.h>
#include <kvq/stats/quantile.h>
#include <kvq/stats/summary.h>

namespace kvq {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::int64_t kLongContext = 32768;

/// The unquantized cache and one cache per quantizer.
struct Variants {
  ExactAttention exact;
  std::vector<std::unique_ptr<KvCache>> quantized;
  std::vector<int> first_layer;  ///< below it nothing is quantized
  std::vector<bool> whole;

  Variants(const ModelConfig& config, const std::vector<NamedQuantizer>& quantizers, int threads)
      : exact(config.kv, config.rope) {
    for (const NamedQuantizer& named : quantizers) {
      quantized.push_back(cache_of(named, config, threads));
      first_layer.push_back(named.parts.layers.empty() || named.model ? 0 : named.parts.layers.front());
      whole.push_back(named.parts.all());
    }
  }
  std::size_t size() const { return quantized.size() + 1; }
  AttentionBackend& backend(std::size_t variant) {
    return variant == 0 ? static_cast<AttentionBackend&>(exact) : *quantized[variant - 1];
  }
};

std::vector<WindowRecord> run_window(Model& model, const Window& window, const std::vector<NamedQuantizer>& quantizers,
                                     Variants& variants, const JudgedSpan& span, RunContext& context) {
  const KvShape& shape = model.config().kv;
  std::vector<WindowRecord> records(variants.size());
  std::vector<at::Tensor> hidden(variants.size(), model.embed(window.ids));
  for (int layer = 0; layer < shape.layers; ++layer) {
    model.load_layer(layer);
    for (std::size_t variant = 0; variant < variants.size(); ++variant) {
      context.cancel.check();
      context.progress.advance(1);
      if (variant > 0 && layer < variants.first_layer[variant - 1]) {
        hidden[variant] = hidden[0];  // the same so far
        continue;
      }
      Model& blocks = variant == 0 ? model : blocks_of(quantizers[variant - 1], model);
      blocks.load_layer(layer);  // the time of a row is that of its forward pass
      const auto start = Clock::now();
      hidden[variant] = blocks.layer_forward(layer, hidden[variant], 0, variants.backend(variant), nullptr);
      records[variant].seconds += seconds_since(start);
    }
  }
  std::vector<WindowComparison> comparisons = compare_window(model, hidden, window.ids, span.from);
  const auto tokens = static_cast<std::int64_t>(window.ids.size());
  for (std::size_t variant = 0; variant < variants.size(); ++variant) {
    records[variant].comparison = std::move(comparisons[variant]);
    if (variant == 0) {
      records[variant].cache_bytes = fp16_bytes(shape, tokens);
    } else if (variants.whole[variant - 1]) {
      records[variant].cache_bytes = variants.quantized[variant - 1]->bytes();
    }
    variants.backend(variant).reset();
  }
  return records;
}

/// Per-window numbers of one variant, gathered for means and errors.
struct Gathered {
  std::vector<double> nll, kl;
  std::vector<float> token_kl;
  std::int64_t same_top1 = 0, predictions = 0;
  double cache_bytes = 0, seconds = 0;
  std::vector<double> position_nll, position_kl;  ///< sums over windows

  /// Comparisons begin at the first edge.
  void add_positions(const WindowComparison& comparison, const std::vector<std::int64_t>& edges) {
    position_nll.resize(edges.size() - 1);
    position_kl.resize(edges.size() - 1);
    for (std::size_t interval = 0; interval + 1 < edges.size(); ++interval) {
      for (auto token = static_cast<std::size_t>(edges[interval]);
           token < static_cast<std::size_t>(edges[interval + 1]); ++token) {
        const std::size_t judged = token - static_cast<std::size_t>(edges.front());
        position_nll[interval] += comparison.token_nll[judged];
        position_kl[interval] += comparison.kl[judged];
      }
    }
  }

  void add(const WindowRecord& record) {
    nll.push_back(record.comparison.nll);
    double sum = 0;
    for (float value : record.comparison.kl) sum += value;
    kl.push_back(sum / static_cast<double>(record.comparison.kl.size()));
    token_kl.insert(token_kl.end(), record.comparison.kl.begin(), record.comparison.kl.end());
    same_top1 += record.comparison.same_top1;
    predictions += static_cast<std::int64_t>(record.comparison.kl.size());
    cache_bytes += static_cast<double>(record.cache_bytes);
    seconds += record.seconds;
  }
};

VariantResult summarize(Gathered& gathered, const std::vector<double>& baseline_nll,
                        const std::vector<std::int64_t>& edges) {
  VariantResult result;
  result.window_nll = gathered.nll;
  result.window_kl = gathered.kl;
  for (std::size_t interval = 0; interval + 1 < edges.size(); ++interval) {
    const double tokens =
        static_cast<double>((edges[interval + 1] - edges[interval]) * static_cast<std::int64_t>(gathered.nll.size()));
    result.position_nll.push_back(gathered.position_nll[interval] / tokens);
    result.position_kl.push_back(gathered.position_kl[interval] / tokens);
  }
  result.nll = mean(gathered.nll);
  result.ppl = std::exp(result.nll);
  std::vector<double> difference;
  for (std::size_t window = 0; window < gathered.nll.size(); ++window) {
    difference.push_back(gathered.nll[window] - baseline_nll[window]);
  }
  result.delta_nll = mean(difference);
  result.delta_nll_se = standard_error(difference);
  result.kl_mean = mean(gathered.kl);
  result.kl_mean_se = standard_error(gathered.kl);
  result.kl_p99 = quantile(gathered.token_kl, 0.99);
  result.top1 = static_cast<double>(gathered.same_top1) / static_cast<double>(gathered.predictions);
  result.cache_bytes = std::llround(gathered.cache_bytes / static_cast<double>(gathered.nll.size()));
  result.seconds = gathered.seconds;
  return result;
}

std::string describe(const KvShape& shape) {
  return fmt::format("{} of {} for {} of {}", plural(shape.layers, "layer"), plural(shape.heads, "query head"),
                     plural(shape.kv_heads, "kv head"), shape.head_dim);
}

std::string describe_one(const RopeParams& rope) {
  std::string text = fmt::format("{}, theta {}, {}", rope.kind, rope.theta, plural(rope.rotary_dim, "channel"));
  if (rope.kind != "default") text += fmt::format(", factor {}", rope.factor);
  if (rope.kind == "llama3") {
    text += fmt::format(", frequency factors {} and {}, original context {}", rope.low_freq_factor,
                        rope.high_freq_factor, rope.original_context);
  }
  return text;
}

std::string describe(const ModelRope& rope) {
  std::string text = describe_one(rope);
  if (!rope.has_local_layers()) return text;
  std::vector<int> local;
  for (int layer = 0; layer < static_cast<int>(rope.is_local.size()); ++layer) {
    if (rope.local_at(layer)) local.push_back(layer);
  }
  return fmt::format("{}; in layers {}: {}, windows of {}", text, fmt::join(local, ","), describe_one(rope.local),
                     plural(rope.window, "token"));
}

}  // namespace

std::string cache_name(const NamedQuantizer& named) {
  return named.quantizer ? cache_kind_names()[static_cast<std::size_t>(named.cache)] : "";
}

void check_belongs(const Quantizer& quantizer, const ModelConfig& config, const std::string& name) {
  if (!(quantizer.shape == config.kv)) {
    fail(ErrorKind::Mismatch,
         fmt::format("{}: is for {}, the model has {}", name, describe(quantizer.shape), describe(config.kv)));
  }
  // Fields that a kind does not use do not count.
  if (describe(quantizer.rope) != describe(config.rope)) {
    fail(ErrorKind::Mismatch, fmt::format("{}: is for another rotary embedding ({}) than the model's ({})", name,
                                          describe(quantizer.rope), describe(config.rope)));
  }
}

JudgedSpan usual_span(const std::vector<NamedQuantizer>& quantizers, std::int64_t seqlen) {
  const bool needed = std::any_of(quantizers.begin(), quantizers.end(), [](const NamedQuantizer& named) {
    return named.quantizer && chooses_at_prompt_end(named.quantizer->recipe.eviction.rule);
  });
  return needed ? JudgedSpan{seqlen / 2, seqlen / 2} : JudgedSpan{};
}

std::vector<std::int64_t> position_edges_of(std::int64_t predictions, std::int64_t first) {
  std::vector<std::int64_t> edges = {first};
  const double step = first == 0 ? std::sqrt(2.0) : std::pow(2.0, 0.125);
  for (double edge = 1; edge < static_cast<double>(predictions); edge *= step) {
    const auto whole = static_cast<std::int64_t>(std::llround(edge));
    if (whole > edges.back() && whole < predictions) edges.push_back(whole);
  }
  edges.push_back(predictions);
  return edges;
}

PerplexityReport evaluate_perplexity(Model& model, const std::vector<Window>& windows,
                                     const std::vector<NamedQuantizer>& quantizers, const WindowJournal* journal,
                                     RunContext& context, const JudgedSpan& span) {
  KVQ_ASSERT(!windows.empty() && windows.front().ids.size() >= 2);
  const auto start = Clock::now();
  const c10::InferenceMode no_gradients;
  Variants variants(model.config(), quantizers, context.threads);
  PerplexityReport report;
  report.seqlen = static_cast<std::int64_t>(windows.front().ids.size());
  report.windows = static_cast<std::int64_t>(windows.size());
  report.span = span;
  report.position_edges = position_edges_of(report.seqlen - 1, span.from);
  for (const auto& cache : variants.quantized) {
    if (span.prompt > 0) cache->set_prompt(span.prompt);
  }

  const std::int64_t steps_per_window = static_cast<std::int64_t>(variants.size()) * model.config().kv.layers;
  std::vector<Gathered> gathered(variants.size());
  std::vector<std::int64_t> missing;
  std::vector<std::vector<WindowRecord>> records(windows.size());
  for (std::int64_t window = 0; window < report.windows; ++window) {
    auto known = journal ? journal->load(window, variants.size()) : std::nullopt;
    if (known) {
      records[window] = std::move(*known);
    } else {
      missing.push_back(window);
    }
  }
  report.resumed = report.windows - static_cast<std::int64_t>(missing.size());
  if (report.resumed > 0)
    context.log.info(fmt::format("finished before: {} of {}", report.resumed, plural(report.windows, "window")));

  context.progress.begin(
      fmt::format("{} × {}, layers", plural(missing.size(), "window"), plural(variants.size(), "cache")),
      steps_per_window * static_cast<std::int64_t>(missing.size()));
  for (const std::int64_t window : missing) {
    records[window] = run_window(model, windows[window], quantizers, variants, span, context);
    if (journal) journal->store(window, records[window]);
  }
  context.progress.end();
  for (const auto& window_records : records) {
    for (std::size_t variant = 0; variant < variants.size(); ++variant) {
      gathered[variant].add(window_records[variant]);
      gathered[variant].add_positions(window_records[variant].comparison, report.position_edges);
    }
  }
  std::vector<std::vector<LayerDistribution>> distributions =
      observe_distributions(model, windows.front().ids, quantizers, context);

  for (std::size_t variant = 0; variant < variants.size(); ++variant) {
    VariantResult result = summarize(gathered[variant], gathered[0].nll, report.position_edges);
    if (variant == 0) {
      result.name = "none";
    } else {
      const NamedQuantizer& named = quantizers[variant - 1];
      result.name = named.name;
      result.weights = named.weights;
    }
    if (variant > 0 && quantizers[variant - 1].quantizer) {
      const Quantizer& quantizer = *quantizers[variant - 1].quantizer;
      result.bits_nominal = nominal_bits(quantizer.recipe, quantizer.shape.head_dim);
      const double values = 2.0 * quantizer.shape.layers * quantizer.shape.width() * static_cast<double>(report.seqlen);
      result.bits_counted = 8.0 * static_cast<double>(result.cache_bytes) / values;
      result.bits_counted_32k =
          forecast_footprint(quantizer, kLongContext).bits_per_value(quantizer.shape, kLongContext);
      const NamedQuantizer& named = quantizers[variant - 1];
      result.counted = !quantizer.recipe.is_oracle() && named.parts.all();
      result.cache = cache_name(named);
      result.parts = named.parts;
      result.source = named.source;
      result.layers = std::move(distributions[variant - 1]);
      result.table_bytes = table_bytes(quantizer);
    }
    const double unquantized = variant == 0 ? 0.0 : report.results.front().seconds;
    if (unquantized > 0) result.relative_time = result.seconds / unquantized;
    report.results.push_back(std::move(result));
  }
  report.seconds = seconds_since(start);
  return report;
}

const VariantResult* recommend(const PerplexityReport& report, double max_kl) {
  const VariantResult* best = nullptr;
  for (std::size_t variant = 1; variant < report.results.size(); ++variant) {
    const VariantResult& result = report.results[variant];
    if (!result.counted || result.weights.used() || result.kl_mean > max_kl ||
        result.bits_counted >= report.results[0].bits_counted)
      continue;
    if (!best || result.bits_counted < best->bits_counted) best = &result;
  }
  return best;
}

}  // namespace kvq
