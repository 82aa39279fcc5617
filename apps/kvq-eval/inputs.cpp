#include "kvq-eval/inputs.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/numbers.h"
#include "kvq-eval/weights.h"

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/artifacts/recipe_toml.h>
#include <kvq/cache/cuda_plugin.h>
#include <kvq/cache/kv_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/shortened.h>

namespace kvq::apps {

void add_input_options(CLI::App& command, InputOptions& options) {
  add_model_options(command, options);
  add_device_option(command, options);
  command.add_option("--quantizer", options.quantizers, "quantizer from kvq-fit; repeat to compare several")
      ->expected(1)
      ->take_all();
  command
      .add_option("--recipe", options.recipes,
                  "unquantized cache that evicts (none:evict=h2o,budget=25%), which needs no file; repeat for several")
      ->expected(1)
      ->take_all();
  command
      .add_option(
          "--weights", options.weights,
          "quantized weights from kvq-fit; repeat for several: each is judged by itself and with every quantizer")
      ->expected(1)
      ->take_all();
  command
      .add_option(
          "--cache", options.cache,
          "how quantized caches are run: simulated, or the bits themselves: packed (on the CPU), cuda (on a GPU)")
      ->check(CLI::IsMember(cache_kind_names()))
      ->capture_default_str();
}

namespace {

std::vector<Recipe> unquantized_recipes(const std::vector<std::string>& texts) {
  std::vector<Recipe> recipes;
  for (const std::string& text : texts) {
    recipes.push_back(resolve_recipe(text));
    if (recipes.back().quantized) {
      fail(ErrorKind::Usage,
           fmt::format("--recipe {}: what quantizes is calibrated first: kvq-fit makes a file of it for --quantizer. "
                       "Here go recipes of unquantized caches that evict (none:evict=h2o,budget=25%)",
                       shortened(text)));
    }
    if (!recipes.back().evicts())
      fail(ErrorKind::Usage,
           fmt::format("--recipe {}: every report has the unquantized cache anyway", shortened(text)));
    if (std::count(recipes.begin(), recipes.end(), recipes.back()) > 1)
      fail(ErrorKind::Usage, fmt::format("--recipe {} is given twice", shortened(text)));
  }
  return recipes;
}

}  // namespace

Inputs load_inputs(const InputOptions& options, RunContext& context) {
  Inputs inputs;
  const std::vector<Recipe> recipes = unquantized_recipes(options.recipes);
  refuse_repeats("--quantizer", options.quantizers);
  refuse_repeats("--weights", options.weights);
  if (options.cache == "cuda") require_cuda_cache();
  if (options.cache != "simulated" && options.quantizers.empty() && options.recipes.empty())
    fail(ErrorKind::Usage,
         fmt::format("--cache {0}: there is no --quantizer and no --recipe that would be a {0} cache", options.cache));
  std::vector<QuantizerFile> files;
  for (const auto& path : options.quantizers) files.push_back(read_quantizer(path));
  const std::vector<std::shared_ptr<WeightsReader>> weights = open_weights(options.weights);

  static_cast<LoadedModel&>(inputs) = open_model(options, context, static_cast<int>(weights.size()) + 1);
  const auto& kinds = cache_kind_names();
  const auto cache = static_cast<CacheKind>(std::find(kinds.begin(), kinds.end(), options.cache) - kinds.begin());

  std::set<std::string> names;
  for (std::size_t index = 0; index < files.size(); ++index) {
    QuantizerFile& file = files[index];
    const std::string path = options.quantizers[index].string();
    if (file.provenance.model_sha256 != inputs.model->sha256()) {
      fail(ErrorKind::Mismatch,
           fmt::format("--quantizer {}: was made from another model (sha256 {:.12}…), {} is {:.12}…", path,
                       file.provenance.model_sha256, options.model.string(), inputs.model->sha256()));
    }
    if (file.provenance.tokenizer_sha256 != inputs.tokenizer->sha256) {
      fail(ErrorKind::Mismatch,
           fmt::format("--quantizer {}: was calibrated with another tokenizer (sha256 {:.12}…), that of {} is {:.12}…",
                       path, file.provenance.tokenizer_sha256, options.model.string(), inputs.tokenizer->sha256));
    }
    check_belongs(file.quantizer, inputs.model->config(), "--quantizer " + path);
    std::string name = short_form(file.quantizer.recipe);
    if (names.contains(name)) name += fmt::format(" [{}]", options.quantizers[index].stem().string());
    while (!names.insert(name).second) name += "'";
    // What quantizes nothing was not fitted to any text.
    inputs.fingerprints.push_back(file.quantizer.recipe.quantized ? std::move(file.fingerprints)
                                                                  : std::vector<std::uint64_t>{});
    VariantSource source{options.quantizers[index].filename().string(), sha256_of_file(options.quantizers[index]),
                         file.provenance.parents, ""};
    auto quantizer = std::make_shared<const Quantizer>(std::move(file.quantizer));
    make_cache(cache, quantizer, 1);  // what it cannot hold is refused before anything else is said or done
    inputs.quantizers.push_back({name, std::move(quantizer), cache, {}, std::move(source)});
  }
  const ModelConfig& config = inputs.model->config();
  for (const Recipe& recipe : recipes) {
    std::string name = short_form(recipe);
    if (names.contains(name)) name += " [--recipe]";
    while (!names.insert(name).second) name += "'";
    auto quantizer = std::make_shared<const Quantizer>(Quantizer{recipe, config.kv, config.rope, {}});
    make_cache(cache, quantizer, 1);
    VariantSource source{"", sha256_of(recipe_to_toml(recipe)), {}, ""};
    inputs.quantizers.push_back({name, std::move(quantizer), cache, {}, std::move(source)});
    inputs.fingerprints.emplace_back();
  }
  add_weight_rows(options, weights, inputs, context);
  return inputs;
}

RunIdentity run_identity(const Tool& tool, const InputOptions& options, const Inputs& inputs, int threads,
                         const std::vector<std::string>& harmless) {
  RunIdentity identity;
  identity.entries = {{"kvq", KVQ_VERSION}, {"model", inputs.model->sha256()}};
  for (std::size_t index = 0; index < options.quantizers.size(); ++index) {
    identity.entries.emplace_back(fmt::format("quantizer {}", index + 1), sha256_of_file(options.quantizers[index]));
  }
  for (std::size_t index = 0; index < options.weights.size(); ++index)
    identity.entries.emplace_back(fmt::format("weights {}", index + 1), sha256_of_file(options.weights[index]));
  for (std::size_t index = 0; index < options.recipes.size(); ++index)
    identity.entries.emplace_back(fmt::format("recipe {}", index + 1),
                                  short_form(resolve_recipe(options.recipes[index])));
  identity.add_settings(tool.resolved_config());
  std::erase_if(identity.entries, [&](const auto& entry) {
    return std::find(harmless.begin(), harmless.end(), entry.first) != harmless.end();
  });
  identity.entries.emplace_back("threads", fmt::format("{}", threads));
  return identity;
}

ReportSubject report_subject(const Tool& tool, const InputOptions& options, const Inputs& inputs) {
  ReportSubject subject;
  subject.model = options.model.filename().string();
  if (subject.model.empty()) subject.model = options.model.parent_path().filename().string();  // a folder with a slash
  subject.settings = tool.resolved_config();
  subject.model_sha256 = inputs.model->sha256();
  subject.tokenizer_sha256 = inputs.tokenizer->sha256;
  subject.dtype = options.dtype;
  subject.bos = inputs.prepend_bos ? "window" : "never";
  subject.command = tool.command_line();
  subject.producer = tool.producer();
  return subject;
}

}  // namespace kvq::apps
