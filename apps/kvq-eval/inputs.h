#pragma once
// What every command of kvq-eval reads: model, tokenizer and quantizers that belong together.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/loaded_model.h"
#include "common/tool.h"

#include <kvq/eval/perplexity.h>
#include <kvq/eval/report.h>

namespace kvq::apps {

struct InputOptions : ModelArguments {
  std::vector<std::filesystem::path> quantizers;
  std::string cache = "simulated";
};

/// --model, --quantizer, --cache, --dtype, --bos
void add_input_options(CLI::App& command, InputOptions& options);

struct Inputs : LoadedModel {
  std::vector<NamedQuantizer> quantizers;
  /// Per quantizer: fingerprints of its calibration text.
  std::vector<std::vector<std::uint64_t>> fingerprints;
};

/// The head of a report on these inputs; the text's fields are the caller's.
ReportSubject report_subject(const Tool& tool, const InputOptions& options, const Inputs& inputs);

/// Cheap checks first, so that a wrong argument is reported before a large model is opened. Throws Mismatch for a
/// quantizer of another model or tokenizer.
Inputs load_inputs(const InputOptions& options, RunContext& context);

}  // namespace kvq::apps
