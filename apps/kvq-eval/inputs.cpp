#include "kvq-eval/inputs.h"

#include <set>

#include <fmt/format.h>

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/core/error.h>
#include <kvq/model/threads.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

void add_input_options(CLI::App& command, InputOptions& options) {
  command.add_option("--model", options.model, "GGUF file or Hugging Face folder")->required();
  command.add_option("--quantizer", options.quantizers, "quantizer from kvq-fit; repeat to compare several")->expected(1)->take_all();
  command.add_option("--cache", options.cache, "how quantized caches are run: simulated")
      ->check(CLI::IsMember({"simulated"}))
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command.add_option("--bos", options.bos, "auto (as the tokenizer does), never, or window (one before each window)")
      ->check(CLI::IsMember({"auto", "never", "window"}))
      ->capture_default_str();
}

Inputs load_inputs(const InputOptions& options, RunContext& context) {
  Inputs inputs;
  std::vector<QuantizerFile> files;
  for (const auto& path : options.quantizers) files.push_back(read_quantizer(path));

  inputs.tokenizer = load_tokenizer(options.model);
  const BosMode bos = parse_bos_mode(options.bos);
  inputs.prepend_bos = bos == BosMode::Window || (bos == BosMode::Auto && inputs.tokenizer->adds_bos);
  if (inputs.prepend_bos && !inputs.tokenizer->bos_id) {
    fail(ErrorKind::Usage, fmt::format("--bos {}: the tokenizer of {} has no BOS token", options.bos, options.model.string()));
  }
  set_compute_threads(context.threads);
  inputs.model = load_model(options.model, ModelOptions{parse_dtype(options.dtype)});
  if (inputs.tokenizer->vocab_size() > inputs.model->config().vocab) {
    fail(ErrorKind::Mismatch, fmt::format("{}: the tokenizer has {} tokens, the model's embedding only {}", options.model.string(),
                                          inputs.tokenizer->vocab_size(), inputs.model->config().vocab));
  }

  std::set<std::string> names;
  for (std::size_t index = 0; index < files.size(); ++index) {
    QuantizerFile& file = files[index];
    const std::string path = options.quantizers[index].string();
    if (file.provenance.model_sha256 != inputs.model->sha256()) {
      fail(ErrorKind::Mismatch, fmt::format("--quantizer {}: was made from another model (sha256 {:.12}…), {} is {:.12}…", path,
                                            file.provenance.model_sha256, options.model.string(), inputs.model->sha256()));
    }
    if (file.provenance.tokenizer_sha256 != inputs.tokenizer->sha256) {
      fail(ErrorKind::Mismatch, fmt::format("--quantizer {}: was calibrated with another tokenizer (sha256 {:.12}…), that of {} is {:.12}…",
                                            path, file.provenance.tokenizer_sha256, options.model.string(), inputs.tokenizer->sha256));
    }
    std::string name = short_form(file.quantizer.recipe);
    if (names.contains(name)) name += fmt::format(" [{}]", options.quantizers[index].stem().string());
    while (!names.insert(name).second) name += "'";
    inputs.fingerprints.push_back(std::move(file.fingerprints));
    inputs.quantizers.push_back({name, std::make_shared<const Quantizer>(std::move(file.quantizer))});
  }
  return inputs;
}

}  // namespace kvq::apps
