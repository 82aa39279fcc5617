#include <kvq/fit/fit.h>

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/fit/rotation.h>
#include <kvq/fit/side_fitter.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const ChannelThresholds* find_thresholds(const ThresholdsFile* file, const Recipe& recipe, Side side, int layer) {
  const SideRecipe& wanted = recipe.side(side);
  if (!needs_thresholds_file(wanted)) return nullptr;
  const ThresholdTensor tensor = side == Side::Value ? ThresholdTensor::Value
                                 : wanted.post_rope  ? ThresholdTensor::KeyPostRope
                                                     : ThresholdTensor::Key;
  return &file->find(wanted.outliers, recipe.sinks)->layers[layer][static_cast<int>(tensor)];
}

/// Recipes in an order that puts those with equal normalised data side by side.
std::vector<int> recipe_order(const std::vector<Recipe>& recipes, Side side, bool post_rope) {
  std::vector<int> order;
  for (int index = 0; index < static_cast<int>(recipes.size()); ++index)
    if (recipes[index].side(side).post_rope == post_rope) order.push_back(index);
  const auto key = [&](int index) {
    const SideRecipe& recipe = recipes[index].side(side);
    return std::tuple(recipe.axis, recipe.range, recipe.group, recipe.outliers, recipe.rule, recipes[index].sinks,
                      recipe.share, recipe.share_channels, recipe.weights);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  return order;
}

bool uses_gradients(const std::vector<Recipe>& recipes, Side side) {
  return std::any_of(recipes.begin(), recipes.end(), [&](const Recipe& recipe) {
    return recipe.side(side).weights != FitWeights::None && !is_block_format(recipe.side(side).codebook);
  });
}

}  // namespace

std::vector<Quantizer> fit_quantizers(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
                                      const std::vector<Recipe>& recipes, RunContext& context,
                                      std::vector<FitReport>* reports) {
  check_fit(calibration, thresholds, recipes);
  const CalibrationHeader& header = calibration.header();
  std::vector<Quantizer> quantizers;
  for (const Recipe& recipe : recipes)
    quantizers.push_back({recipe, header.shape, header.rope, std::vector<LayerQuantizer>(header.shape.layers)});
  std::vector<FitReport> found(recipes.size());

  SideFitter fitter(context.threads);
  context.progress.begin("fit, layer", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    for (Side side : kSides) {
      context.cancel.check();
      auto start = std::chrono::steady_clock::now();
      std::vector<float> x = calibration.values(layer, side), gradients;
      if (uses_gradients(recipes, side)) gradients = calibration.gradients(layer, side);
      const double read_seconds = seconds_since(start);
      start = std::chrono::steady_clock::now();
      for (bool post_rope : {false, true}) {
        const std::vector<int> order = recipe_order(recipes, side, post_rope);
        if (order.empty()) continue;
        if (post_rope) {
          for (std::vector<float>* tensor : {&x, &gradients})
            rotate_tokens(*tensor, header.shape, header.rope, header.seqlen, context.threads);
        }
        fitter.begin(header.shape, header.sequences, header.seqlen, x, gradients);
        for (int index : order) {
          SideFitter::Result result = fitter.fit(recipes[index].side(side), recipes[index].sinks,
                                                 find_thresholds(thresholds, recipes[index], side, layer));
          if (result.fell_back) {
            context.log.warning(
                fmt::format("layer {}, {}: all weights are zero; recipe {} is fitted there without weights", layer,
                            side_name(side), short_form(recipes[index])));
          }
          found[index].error[static_cast<int>(side)] += result.error / header.shape.layers;
          quantizers[index].layers[layer].side(side) = std::move(result.quantizer);
        }
      }
      context.log.debug(fmt::format("layer {}, {}: read in {:.3f} s, {} recipes fitted in {:.3f} s", layer,
                                    side_name(side), read_seconds, recipes.size(), seconds_since(start)));
    }
    context.progress.advance(1);
  }
  context.progress.end();
  if (reports != nullptr) *reports = std::move(found);
  return quantizers;
}

}  // namespace kvq
