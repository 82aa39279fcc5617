#pragma once
// A model with its tokenizer, as every tool opens them: the options --model, --dtype and --bos, and the checks between
// them.

#include <filesystem>
#include <memory>
#include <string>

#include "common/cli_forward.h"

#include <kvq/core/log.h>
#include <kvq/model/model.h>
#include <kvq/text/tokenizer.h>

namespace kvq::apps {

struct ModelArguments {
  std::filesystem::path model;
  std::string dtype = "fp32", bos = "auto", device = "cpu";
};

/// --model (required), --dtype, --bos
void add_model_options(CLI::App& command, ModelArguments& arguments);

/// --device, for commands that pass it on to open_device() below and to open_model().
void add_device_option(CLI::App& command, ModelArguments& arguments);
/// Makes --device ready, the first thing that a command does: throws Device before anything is read or made.
void open_device(const ModelArguments& arguments);

struct LoadedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  bool prepend_bos = false;

  std::int32_t bos() const { return tokenizer->bos_id.value_or(-1); }
};

/// Sets the compute threads too. Throws Input, Format; Usage for a BOS that the tokenizer has not; Mismatch for a
/// tokenizer that the model's vocabulary does not hold. The tokenizer comes first: it is cheap and fails early.
/// `models`: how many of this size share the memory.
LoadedModel open_model(const ModelArguments& arguments, RunContext& context, int models = 1);

/// Warns when `length` tokens, asked for by `flag`, are beyond the context that the model's file promises.
void warn_beyond_context(const Model& model, const std::string& flag, std::int64_t length, Log& log);

}  // namespace kvq::apps
