#pragma once
// Baseline and any number of quantizers over the same windows, layer by layer side by side: one read of the weights,
// one baseline head per chunk of logits.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvq/cache/kv_cache.h>
#include <kvq/core/log.h>
#include <kvq/eval/distribution.h>
#include <kvq/eval/window_journal.h>
#include <kvq/model/model.h>
#include <kvq/quant/quantizer.h>
#include <kvq/text/corpus.h>

namespace kvq {

/// Where a quantizer comes from: for people who read a report, and for those who merge reports.
struct VariantSource {
  std::string file, sha256;                                  ///< of the quantizer file; its name without folders
  std::vector<std::pair<std::string, std::string>> parents;  ///< what it was made from: name and sha256
  std::string calibration;                                   ///< label of the calibration, where several are compared
  bool operator==(const VariantSource&) const = default;
};

/// Quantized weights that a row was run with; all empty where they are the model's own.
struct WeightsSource {
  std::string name;          ///< short form of the scheme
  std::string file, sha256;  ///< of the file of weights; its name without folders
  double bits_counted = 0;   ///< per weight of the blocks
  std::vector<std::pair<std::string, std::string>> parents;
  bool used() const { return !sha256.empty(); }
  bool operator==(const WeightsSource&) const = default;
};

struct NamedQuantizer {
  std::string name;                            ///< short form of the recipe; made unique by the caller
  std::shared_ptr<const Quantizer> quantizer;  ///< null: the unquantized cache, for a row with other weights
  CacheKind cache = CacheKind::Simulated;      ///< how it is run
  CacheParts parts = {};                       ///< what of it is used
  VariantSource source = {};
  WeightsSource weights = {};
  /// Whose blocks are run, if not those of the model that is judged: the same model with other weights.
  std::shared_ptr<Model> model = nullptr;
};

/// How it is run: a name of cache_kind_names(); empty where there is no cache of ours.
std::string cache_name(const NamedQuantizer& named);

/// One row of the report. Nats; means over predicted tokens; standard errors over windows, absent below 5 of them.
struct VariantResult {
  std::string name;
  std::vector<double> window_nll, window_kl;  ///< means of each window
  double nll = 0, ppl = 0;
  double delta_nll = 0;
  std::optional<double> delta_nll_se;
  double kl_mean = 0;  ///< KL(unquantized ‖ quantized)
  std::optional<double> kl_mean_se;
  double kl_p99 = 0;
  double top1 = 1;  ///< share of positions where the most likely token is the same
  double bits_nominal = 16, bits_counted = 16, bits_counted_32k = 16;
  /// False for oracles (range=window) and for quantizers of which only parts are used: they are no cache, so
  /// bits_counted is not reported.
  bool counted = true;
  std::int64_t cache_bytes = 0;
  std::int64_t table_bytes = 0;
  double seconds = 0;        ///< transformer layers of this variant; the output head is shared work
  double relative_time = 1;  ///< of the unquantized pass's in the same run
  std::string cache;         ///< how it was run: a name of cache_kind_names(); empty for the baseline
  CacheParts parts;
  VariantSource source;
  WeightsSource weights;
  std::vector<double> position_nll, position_kl;  ///< means over the intervals of PerplexityReport::position_edges
  std::vector<LayerDistribution> layers;          ///< `[layers]`, or empty
};

/// What of each window counts.
struct JudgedSpan {
  /// Tokens of a window that are its prompt, for recipes that evict at a prompt's end.
  std::int64_t prompt = 0;
  /// First judged prediction, 0 being that of the window's second token: the token at this position makes it.
  std::int64_t from = 0;
};

/// Half the window as prompt where a quantizer chooses at its end, and then only what comes after it is judged.
JudgedSpan usual_span(const std::vector<NamedQuantizer>& quantizers, std::int64_t seqlen);

struct PerplexityReport {
  std::int64_t seqlen = 0, windows = 0;
  JudgedSpan span;                     ///< prompt: 0 where no cache needs one
  std::int64_t resumed = 0;            ///< windows taken from the journal
  std::vector<VariantResult> results;  ///< the unquantized baseline first, named `none`
  double seconds = 0;
  /// Intervals [edge, next edge) of predicted tokens, 0 being the prediction of the window's second token.
  std::vector<std::int64_t> position_edges;
};

/// Throws Mismatch, beginning with `name`, for a quantizer of another shape or another rotary embedding than the
/// model's: a cache rotates keys as its quantizer says.
void check_belongs(const Quantizer& quantizer, const ModelConfig& config, const std::string& name);

/// Half octaves from 0 to `predictions`: a context matters by its order of magnitude. From another `first` on eighths.
std::vector<std::int64_t> position_edges_of(std::int64_t predictions, std::int64_t first = 0);

/// `journal` may be null: then nothing is kept. All windows have the same length >= 2, of which `span` is a part.
/// Throws Numeric (layer, tensor, position) and what check_belongs throws.
PerplexityReport evaluate_perplexity(Model& model, const std::vector<Window>& windows,
                                     const std::vector<NamedQuantizer>& quantizers, const WindowJournal* journal,
                                     RunContext& context, const JudgedSpan& span = {});

/// The cheapest variant (counted bits) whose mean KL is at most `max_kl`; nullptr when none is. Oracles, the
/// baseline, rows with quantized weights and whatever is no smaller than the baseline are left out.
const VariantResult* recommend(const PerplexityReport& report, double max_kl);

}  // namespace kvq
