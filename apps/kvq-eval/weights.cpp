#include "kvq-eval/weights.h"

#include <set>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/eval/decoded_weights.h>
#include <kvq/model/block_weights.h>
#include <kvq/model/device.h>

namespace kvq::apps {

namespace {

void check_origin(const std::string& path, const WeightsHeader& header, const InputOptions& options,
                  const Inputs& inputs) {
  const std::string model = inputs.model->sha256();
  if (header.provenance.model_sha256 != model) {
    fail(ErrorKind::Mismatch, fmt::format("--weights {}: was made from another model (sha256 {:.12}…), {} is {:.12}…",
                                          path, header.provenance.model_sha256, options.model.string(), model));
  }
  if (header.provenance.tokenizer_sha256 != inputs.tokenizer->sha256) {
    fail(ErrorKind::Mismatch,
         fmt::format("--weights {}: was calibrated with another tokenizer (sha256 {:.12}…), that of {} is {:.12}…",
                     path, header.provenance.tokenizer_sha256, options.model.string(), inputs.tokenizer->sha256));
  }
  if (!(header.shape == inputs.model->config().blocks()))
    fail(ErrorKind::Mismatch,
         fmt::format("--weights {}: its matrices have other sizes than those of {}", path, options.model.string()));
}

}  // namespace

std::vector<std::shared_ptr<WeightsReader>> open_weights(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::shared_ptr<WeightsReader>> readers;
  for (const auto& path : paths) {
    readers.push_back(std::make_shared<WeightsReader>(path));
    readers.back()->check();
  }
  return readers;
}

void add_weight_rows(const InputOptions& options, const std::vector<std::shared_ptr<WeightsReader>>& weights,
                     Inputs& inputs, RunContext& context) {
  for (std::size_t index = 0; index < weights.size(); ++index)
    check_origin(options.weights[index].string(), weights[index]->header(), options, inputs);
  const std::size_t caches = inputs.quantizers.size();
  ModelOptions model{parse_dtype(options.dtype)};
  model.device = parse_device(options.device);
  model.weight_budget_bytes =
      available_memory_bytes(model.device) / 2 / (static_cast<std::int64_t>(weights.size()) + 1);
  std::set<std::string> names;
  for (std::size_t index = 0; index < weights.size(); ++index) {
    const std::filesystem::path& path = options.weights[index];
    const WeightsHeader& header = weights[index]->header();
    std::string name = short_form(header.scheme);
    if (names.contains(name)) name += fmt::format(" [{}]", path.stem().string());
    while (!names.insert(name).second) name += "'";
    NamedQuantizer row;
    row.name = name;
    row.weights = {name, path.filename().string(), sha256_of_file(path), header.bits_counted,
                   header.provenance.parents};
    row.model = load_model_with(options.model, model, decoded_weights(weights[index], context.threads), *inputs.model);
    inputs.quantizers.push_back(row);
    inputs.fingerprints.push_back(header.fingerprints);
    for (std::size_t cache = 0; cache < caches; ++cache) {
      NamedQuantizer both = inputs.quantizers[cache];
      both.name += " + " + name;
      both.weights = row.weights;
      both.model = row.model;
      inputs.quantizers.push_back(std::move(both));
      inputs.fingerprints.emplace_back();  // said of the cache and of the weights already
    }
  }
}

}  // namespace kvq::apps
