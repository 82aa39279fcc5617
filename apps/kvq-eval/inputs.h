#pragma once
// What every command of kvq-eval reads: model, tokenizer and quantizers that belong together.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"

#include <kvq/eval/perplexity.h>
#include <kvq/model/model.h>
#include <kvq/text/tokenizer.h>

namespace kvq::apps {

struct InputOptions {
  std::filesystem::path model;
  std::vector<std::filesystem::path> quantizers;
  std::string cache = "simulated";
  std::string dtype = "fp32";
  std::string bos = "auto";
};

/// --model, --quantizer, --cache, --dtype, --bos
void add_input_options(CLI::App& command, InputOptions& options);

struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  std::vector<NamedQuantizer> quantizers;
  /// Per quantizer: fingerprints of its calibration text.
  std::vector<std::vector<std::uint64_t>> fingerprints;
  bool prepend_bos = false;
};

/// Cheap checks first, so that a wrong argument is reported before a large model is opened. Throws Mismatch for a
/// quantizer of another model or tokenizer, and for a tokenizer that the model's vocabulary does not hold.
Inputs load_inputs(const InputOptions& options, RunContext& context);

}  // namespace kvq::apps
