#include "common/loaded_model.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <kvq/core/error.h>
#include <kvq/model/device.h>
#include <kvq/model/threads.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--model", arguments.model, "GGUF file or Hugging Face folder")->required();
  command.add_option("--dtype", arguments.dtype, "compute type of the model: fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command.add_option("--bos", arguments.bos, "auto (as the tokenizer does), never, or window (one before each window)")
      ->check(CLI::IsMember({"auto", "never", "window"}))
      ->capture_default_str();
}

void add_device_option(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--device", arguments.device, "where the model is computed: cpu, or cuda (an NVIDIA GPU)")
      ->check(CLI::IsMember(device_names()))
      ->capture_default_str();
}

void open_device(const ModelArguments& arguments) { kvq::open_device(parse_device(arguments.device)); }

LoadedModel open_model(const ModelArguments& arguments, RunContext& context, int models) {
  LoadedModel loaded;
  const std::string path = arguments.model.string();
  loaded.tokenizer = load_tokenizer(arguments.model);
  const BosMode bos = parse_bos_mode(arguments.bos);
  loaded.prepend_bos = bos == BosMode::Window || (bos == BosMode::Auto && loaded.tokenizer->adds_bos);
  if (loaded.prepend_bos && !loaded.tokenizer->bos_id) {
    fail(ErrorKind::Usage, fmt::format("--bos {}: the tokenizer of {} has no BOS token", arguments.bos, path));
  }
  set_compute_threads(context.threads);
  ModelOptions options{parse_dtype(arguments.dtype)};
  options.device = parse_device(arguments.device);
  if (models > 1) options.weight_budget_bytes = available_memory_bytes(options.device) / 2 / models;
  loaded.model = load_model(arguments.model, options);
  if (loaded.tokenizer->vocab_size() > loaded.model->config().vocab) {
    fail(ErrorKind::Mismatch, fmt::format("{}: the tokenizer has {} tokens, the model's embedding only {}", path,
                                          loaded.tokenizer->vocab_size(), loaded.model->config().vocab));
  }
  return loaded;
}

void warn_beyond_context(const Model& model, const std::string& flag, std::int64_t length, Log& log) {
  const std::int64_t limit = model.config().context;
  if (limit > 0 && length > limit) {
    log.warning(fmt::format("{} {} is beyond the model's context of {} tokens", flag, length, limit));
  }
}

}  // namespace kvq::apps
