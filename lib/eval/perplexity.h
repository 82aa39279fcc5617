#pragma once
// Baseline and any number of quantizers over the same windows, layer by layer side by side: one read of the weights, one
// baseline head per chunk of logits.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/model/model.h>
#include <kvq/quant/quantizer.h>
#include <kvq/text/corpus.h>

namespace kvq {

struct NamedQuantizer {
  std::string name;  ///< short form of the recipe; made unique by the caller
  std::shared_ptr<const Quantizer> quantizer;
};

/// One row of the report. Nats; means over predicted tokens; standard errors over windows, absent below 5 of them.
struct VariantResult {
  std::string name;
  std::vector<double> window_nll;
  double nll = 0, ppl = 0;
  double delta_nll = 0;
  std::optional<double> delta_nll_se;
  double kl_mean = 0;  ///< KL(unquantized ‖ quantized)
  std::optional<double> kl_mean_se;
  double kl_p99 = 0;
  double top1 = 1;  ///< share of positions where the most likely token is the same
  double bits_nominal = 16, bits_counted = 16, bits_counted_32k = 16;
  bool counted = true;  ///< false for oracles (range=window): they are no cache, bits_counted is not reported
  std::int64_t cache_bytes = 0;
  std::int64_t table_bytes = 0;
  double seconds = 0;  ///< layers of this variant, heads excluded
};

struct PerplexityReport {
  std::int64_t tokens = 0;  ///< ids of the text
  std::int64_t seqlen = 0, windows = 0, dropped_tokens = 0;
  std::vector<VariantResult> results;  ///< the unquantized baseline first, named `none`
  double seconds = 0;
};

/// All windows have the same length >= 2. Throws Numeric (layer, tensor, position) and Mismatch (quantizer of another shape).
PerplexityReport evaluate_perplexity(Model& model, const std::vector<Window>& windows,
                                     const std::vector<NamedQuantizer>& quantizers, RunContext& context);

}  // namespace kvq
