#include "kvq-fit/run.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kvq-fit/report.h"

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/core/fingerprint.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>

namespace kvq::apps {

namespace {

void print_plan(const CalibrationHeader& header, const std::vector<Recipe>& recipes,
                const std::vector<std::filesystem::path>& files, bool json) {
  const KvShape& shape = header.shape;
  // Values and gradients, then normalised values, weights and bins, all of one side of one layer.
  const std::int64_t memory_bytes = 18 * header.total_tokens() * shape.width();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text =
      fmt::format("{} of {}, {}, about {} in memory\n", plural(shape.layers, "layer"), plural(shape.width(), "channel"),
                  plural(header.total_tokens(), "token"), human_bytes(static_cast<double>(memory_bytes)));
  for (std::size_t index = 0; index < recipes.size(); ++index) {
    list.push_back({{"recipe", short_form(recipes[index])}});
    text += short_form(recipes[index]);
    if (!files.empty()) {
      list.back()["file"] = files[index].string();
      text += " -> " + files[index].string();
    }
    text += '\n';
  }
  if (json) {
    text = nlohmann::ordered_json({{"layers", shape.layers},
                                   {"channels", shape.width()},
                                   {"tokens", header.total_tokens()},
                                   {"memory_bytes", memory_bytes},
                                   {"fits", std::move(list)}})
               .dump(2);
  }
  print_result(text);
}

}  // namespace

void explain(const std::vector<Recipe>& recipes, bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  for (const Recipe& recipe : recipes) {
    const std::string toml = recipe_to_toml(recipe);
    list.push_back({{"recipe", short_form(recipe)}, {"slug", slug(recipe)}, {"toml", toml}});
    text += (text.empty() ? "" : "\n") + toml;
  }
  print_result(json ? nlohmann::ordered_json({{"recipes", std::move(list)}}).dump(2) : text);
}

void fit(const Tool& tool, const FitArguments& arguments, const std::vector<Recipe>& recipes, RunContext& context) {
  if (arguments.calib.empty()) fail(ErrorKind::Usage, "--calib is missing: the calibration file to fit to");
  if (arguments.output.empty() && !tool.common().dry_run)
    fail(ErrorKind::Usage, "-o is missing: the quantizer file to write, or a folder for several");
  const bool force = tool.common().force;
  std::vector<FitName> names;
  for (const Recipe& recipe : recipes) names.push_back({short_form(recipe), slug(recipe)});
  const std::vector<std::filesystem::path> files = output_files(arguments.output, names, "--recipe", force);
  for (const std::filesystem::path& file : files) tool.check_output(file);
  const CalibrationReader calibration(arguments.calib);
  std::optional<ThresholdsFile> thresholds;
  if (!arguments.thresholds.empty()) thresholds = read_thresholds(arguments.thresholds);
  const ThresholdsFile* given = thresholds ? &*thresholds : nullptr;
  try {
    check_fit(calibration, given, recipes);
  } catch (const Error& error) {  // the library knows the files' contents, not their names
    if (error.kind() != ErrorKind::Mismatch) throw;
    fail(ErrorKind::Mismatch, fmt::format("--thresholds {}: {}", arguments.thresholds.string(), error.what()));
  }
  const CalibrationHeader& header = calibration.header();
  if (tool.common().dry_run) return print_plan(header, recipes, files, tool.common().json);

  std::vector<FitReport> reports;
  std::vector<Quantizer> quantizers = fit_quantizers(calibration, given, recipes, context, &reports);

  QuantizerFile file;
  file.provenance = header.provenance;
  file.provenance.config = tool.resolved_config();
  file.provenance.parents = {{"calibration", calibration.sha256()}};
  if (thresholds) file.provenance.parents.emplace_back("thresholds", sha256_of_file(arguments.thresholds));
  file.fingerprints = fingerprints(header.tokens);
  WrittenTogether written;
  if (recipes.size() > 1) written.make_folder(arguments.output);
  std::vector<Fitted> fits;
  for (std::size_t index = 0; index < files.size(); ++index) {
    file.quantizer = quantizers[index];
    write_quantizer(files[index], file, force);
    written.add(files[index]);
    fits.push_back({files[index], quantizers[index], reports[index]});
  }
  written.complete();
  print_result(tool.common().json ? fits_as_json(fits) : fits_as_text(fits));
}

}  // namespace kvq::apps
