#pragma once
// What every command of kvq-eval reads: model, tokenizer and quantizers that belong together.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/loaded_model.h"
#include "common/tool.h"

#include <kvq/core/run_folder.h>
#include <kvq/eval/perplexity.h>
#include <kvq/eval/report.h>

namespace kvq::apps {

struct InputOptions : ModelArguments {
  std::vector<std::filesystem::path> quantizers, weights;
  std::vector<std::string> recipes;  ///< of unquantized caches that evict: they need no file
  std::string cache = "simulated";
};

/// --model, --quantizer, --recipe, --weights, --cache, --dtype, --bos, --device
void add_input_options(CLI::App& command, InputOptions& options);

struct Inputs : LoadedModel {
  /// The rows of the report behind the unquantized one: quantizers from files, then from recipes, then what --weights
  /// adds.
  std::vector<NamedQuantizer> quantizers;
  /// Per row: fingerprints of its calibration text.
  std::vector<std::vector<std::uint64_t>> fingerprints;
};

/// The head of a report on these inputs; the text's fields are the caller's.
ReportSubject report_subject(const Tool& tool, const InputOptions& options, const Inputs& inputs);

/// Model, quantizers, weights, settings and threads: what a result depends on. Settings hold file names only, so what
/// the files hold is named as well. Without the options in `harmless`, which change nothing that is finished.
RunIdentity run_identity(const Tool& tool, const InputOptions& options, const Inputs& inputs, int threads,
                         const std::vector<std::string>& harmless);

/// Cheap checks first, so that a wrong argument is reported before a large model is opened. Throws Mismatch for a
/// quantizer or weights of another model or tokenizer.
Inputs load_inputs(const InputOptions& options, RunContext& context);

}  // namespace kvq::apps
