#include "kvq-fit/weights.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/core/error.h>
#include <kvq/core/fingerprint.h>
#include <kvq/core/plural.h>
#include <kvq/fit/weights_fit.h>
#include <kvq/model/block_weights.h>
#include <kvq/report/table.h>

namespace kvq::apps {

namespace {

using Json = nlohmann::ordered_json;

struct Planned {
  WeightScheme scheme;
  std::filesystem::path file;
};

/// A file must not depend on what was fitted beside it.
std::string config_of(const Tool& tool, const WeightScheme& scheme) {
  std::string config;
  std::istringstream lines(tool.resolved_config());
  for (std::string line; std::getline(lines, line);) {
    config += line.starts_with("weights = ") ? fmt::format("weights = \"{}\"", short_form(scheme)) : line;
    config += '\n';
  }
  return config;
}

void print_plan(const BlockShape& shape, const std::vector<Planned>& fits, bool json) {
  std::int64_t largest = 0;
  for (const BlockMatrix matrix : kBlockMatrices) largest = std::max(largest, shape.elements(matrix));
  const std::int64_t weights = shape.kv.layers * shape.layer_elements();
  const std::int64_t memory = largest * (2 * 4 + 2 + 8 + 1);  // weights, gradients twice, indices, codes
  Json list = Json::array();
  std::string text =
      fmt::format("{} of {} matrices, {} in all, about {} in memory\n", plural(shape.kv.layers, "layer"),
                  kBlockMatrices.size(), plural(weights, "weight"), human_bytes(static_cast<double>(memory)));
  for (const Planned& fit : fits) {
    list.push_back({{"weights", short_form(fit.scheme)}});
    text += short_form(fit.scheme);
    if (!fit.file.empty()) {
      list.back()["file"] = fit.file.string();
      text += " -> " + fit.file.string();
    }
    text += '\n';
  }
  print_result(json ? Json({{"layers", shape.kv.layers},
                            {"parameters", weights},
                            {"memory_bytes", memory},
                            {"fits", std::move(list)}})
                          .dump(2)
                    : text);
}

void print_reports(const std::vector<Planned>& fits, const std::vector<WeightsReport>& reports, bool json) {
  Json list = Json::array();
  Table table{{"weights", "bits", "counted", "relative error", "file"}, {}};
  for (std::size_t index = 0; index < fits.size(); ++index) {
    const WeightsReport& report = reports[index];
    list.push_back({{"weights", short_form(fits[index].scheme)},
                    {"file", fits[index].file.string()},
                    {"bits_nominal", fits[index].scheme.bits},
                    {"bits_counted", report.bits_counted},
                    {"relative_error", report.error}});
    table.rows.push_back({short_form(fits[index].scheme), fmt::format("{}", fits[index].scheme.bits),
                          fmt::format("{:.3f}", report.bits_counted), fmt::format("{:.3g}", report.error),
                          fits[index].file.string()});
  }
  print_result(json ? Json({{"fits", std::move(list)}}).dump(2) : to_text(table));
}

}  // namespace

void fit_weights(const Tool& tool, const FitArguments& arguments, RunContext& context) {
  if (arguments.output.empty() && !tool.common().dry_run)
    fail(ErrorKind::Usage, "-o is missing: the file of weights to write, or a folder for several");
  std::vector<WeightScheme> schemes;
  std::vector<FitName> names;
  for (const std::string& text : arguments.weights) {
    schemes.push_back(parse_weight_scheme(text));
    names.push_back({short_form(schemes.back()), slug(schemes.back())});
  }
  const bool force = tool.common().force;
  const std::vector<std::filesystem::path> files = output_files(arguments.output, names, "--weights", force);
  std::vector<Planned> fits;
  for (std::size_t index = 0; index < schemes.size(); ++index) {
    fits.push_back({schemes[index], files.empty() ? std::filesystem::path() : files[index]});
    if (!files.empty()) tool.check_output(files[index]);
  }
  const WeightFisherReader fisher(arguments.weight_fisher);
  const ModelSource model = open_model_source(arguments.model);
  if (const std::string sha256 = model_sha256(model); fisher.header().provenance.model_sha256 != sha256) {
    fail(ErrorKind::Mismatch,
         fmt::format("--weight-fisher {}: was made from another model (sha256 {:.12}…), {} is {:.12}…",
                     arguments.weight_fisher.string(), fisher.header().provenance.model_sha256,
                     arguments.model.string(), sha256));
  }
  if (!(fisher.shape() == model.config.blocks()))
    fail(ErrorKind::Mismatch, fmt::format("--weight-fisher {}: its matrices have other sizes than those of {}",
                                          arguments.weight_fisher.string(), arguments.model.string()));
  if (tool.common().dry_run) return print_plan(fisher.shape(), fits, tool.common().json);

  WrittenTogether written;
  if (fits.size() > 1) written.make_folder(arguments.output);
  WeightsHeader header{fisher.header().provenance, fisher.shape(), {}, 0, fingerprints(fisher.header().tokens)};
  header.provenance.parents = {{"weight-fisher", fisher.sha256()}};
  std::vector<std::unique_ptr<WeightsWriter>> writers;
  std::vector<WeightsWriter*> targets;
  for (const Planned& fit : fits) {
    header.scheme = fit.scheme;
    header.provenance.config = config_of(tool, fit.scheme);
    writers.push_back(std::make_unique<WeightsWriter>(fit.file, header, force));
    targets.push_back(writers.back().get());
  }
  const std::vector<WeightsReport> reports = kvq::fit_weights(
      fisher,
      [&](int layer, BlockMatrix matrix, std::span<float> out) { read_block_matrix(model, layer, matrix, out); },
      schemes, targets, context);
  for (std::size_t index = 0; index < fits.size(); ++index) {
    writers[index]->finish();
    written.add(fits[index].file);
  }
  written.complete();
  print_reports(fits, reports, tool.common().json);
}

}  // namespace kvq::apps
