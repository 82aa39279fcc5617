#include <kvq/fit/fit.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/fit/data_view.h>
#include <kvq/fit/query_metric.h>
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

/// Recipes in an order that puts those with equal data, and among them those with equal normalised data, side by side.
std::vector<int> recipe_order(const std::vector<Recipe>& recipes, Side side) {
  std::vector<int> order(recipes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int index) {
    const SideRecipe& recipe = recipes[index].side(side);
    const int sinks = recipes[index].sinks;
    return std::tuple(view_of(recipe, sinks), recipe.axis, recipe.range, recipe.group, recipe.outliers, recipe.rule,
                      sinks, recipe.share, recipe.share_channels, recipe.weights);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  return order;
}

bool uses_gradients(const std::vector<Recipe>& recipes, Side side) {
  return std::any_of(recipes.begin(), recipes.end(), [&](const Recipe& recipe) {
    const SideRecipe& part = recipe.side(side);
    const bool weighted = part.weights == FitWeights::Fisher || part.weights == FitWeights::FisherUnscaled;
    return (weighted && !has_own_format(part.codebook)) || needs_gradients(part);
  });
}

bool uses_metric(const std::vector<Recipe>& recipes, Side side) {
  return std::any_of(recipes.begin(), recipes.end(),
                     [&](const Recipe& recipe) { return needs_metric(recipe.side(side)); });
}

SideFitter::Result fit_side(SideFitter& fitter, const Recipe& recipe, Side side, int layer,
                            const ChannelThresholds* thresholds) {
  try {
    return fitter.fit(recipe.side(side), recipe.sinks, thresholds);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Numeric) throw;
    fail(error.kind(),
         fmt::format("recipe {}, layer {}, {}: {}", short_form(recipe), layer, side_name(side), error.what()));
  }
}

/// What is fitted for a recipe: itself without eviction, or each of its tiers as a recipe of those bits.
std::vector<Recipe> fitted_parts(const Recipe& recipe) {
  if (!recipe.quantized) return {};
  Recipe part = recipe;
  part.eviction = {};
  part.tiers = {};
  std::vector<Recipe> parts = {part};
  for (const int bits : lower_tier_bits(recipe.tiers)) {
    part.key.bits = part.value.bits = bits;
    parts.push_back(part);
  }
  return parts;
}

/// `lower`: fitted with its bits. Ranges and exact values are those of the first tier.
void add_tier(const Quantizer& lower, Quantizer& quantizer) {
  for (std::size_t layer = 0; layer < quantizer.layers.size(); ++layer) {
    for (const Side which : kSides) {
      const SideQuantizer& from = lower.layers[layer].side(which);
      SideQuantizer& to = quantizer.layers[layer].side(which);
      KVQ_ASSERT(from.lower == to.lower && from.upper == to.upper && from.exponent == to.exponent);
      to.lower_tiers.push_back({from.recipe.bits, from.codebooks});
    }
  }
}

/// `recipes`: all different, all quantizing.
std::vector<Quantizer> fit_all(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
                               const std::vector<Recipe>& recipes, RunContext& context, std::vector<FitReport>& found) {
  const CalibrationHeader& header = calibration.header();
  std::vector<Quantizer> quantizers;
  for (const Recipe& recipe : recipes)
    quantizers.push_back({recipe, header.shape, header.rope, std::vector<LayerQuantizer>(header.shape.layers)});
  found.assign(recipes.size(), {});

  SideFitter fitter(context.threads);
  context.progress.begin("fit, layer", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    for (Side side : kSides) {
      context.cancel.check();
      auto start = std::chrono::steady_clock::now();
      const std::vector<float> x = calibration.values(layer, side);
      std::vector<float> gradients;
      if (header.gradients && uses_gradients(recipes, side)) gradients = calibration.gradients(layer, side);
      std::vector<double> metric, turned_metric;
      std::vector<float> mass;
      if (uses_metric(recipes, side)) {
        metric = calibration.metric(layer, side);
        mass = calibration.attention_mass(layer);
      }
      const double read_seconds = seconds_since(start);
      start = std::chrono::steady_clock::now();
      std::optional<DataView> view;
      ViewedData viewed;
      for (const int index : recipe_order(recipes, side)) {
        const Recipe& recipe = recipes[index];
        const DataView wanted = view_of(recipe.side(side), recipe.sinks);
        if (view != wanted) {
          view = wanted;
          viewed = {};
          if (wanted.changes_data()) {
            viewed = view_data(wanted, header.shape, header.rope.of(layer), header.sequences, header.seqlen, x,
                               gradients, context.threads);
          }
          // Sinks stay exact as they are, unrotated.
          const float exact = wanted.rotation == Rotation::None ? 0.0f : largest_magnitude(x, context.threads);
          fitter.begin(header.shape, header.rope.of(layer), header.sequences, header.seqlen,
                       wanted.changes_data() ? viewed.x : x, wanted.changes_data() ? viewed.gradients : gradients,
                       exact);
          if (!metric.empty() && !wanted.post_rope) {
            turned_metric = wanted.rotation == Rotation::None
                                ? metric
                                : rotated_metric(metric, viewed.rotation_scale, header.shape);
            fitter.set_metric(side, turned_metric, mass);
          }
        }
        SideFitter::Result result =
            fit_side(fitter, recipe, side, layer, find_thresholds(thresholds, recipe, side, layer));
        if (result.fell_back) {
          context.log.warning(
              fmt::format("layer {}, {}: all weights are zero; recipe {} is fitted there without weights", layer,
                          side_name(side), short_form(recipe)));
        }
        result.quantizer.rotation_scale = viewed.rotation_scale;
        found[index].error[static_cast<int>(side)] += result.error / header.shape.layers;
        quantizers[index].layers[layer].side(side) = std::move(result.quantizer);
      }
      context.log.debug(fmt::format("layer {}, {}: read in {:.3f} s, {} recipes fitted in {:.3f} s", layer,
                                    side_name(side), read_seconds, recipes.size(), seconds_since(start)));
    }
    context.progress.advance(1);
  }
  context.progress.end();
  return quantizers;
}

}  // namespace

std::vector<Quantizer> fit_quantizers(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
                                      const std::vector<Recipe>& recipes, RunContext& context,
                                      std::vector<FitReport>* reports) {
  check_fit(calibration, thresholds, recipes);
  // Eviction changes nothing in the fit, and each tier is a recipe by itself: what differs in them alone is fitted
  // once.
  std::vector<Recipe> distinct;
  std::vector<std::vector<std::size_t>> sources;  // of each tier
  for (const Recipe& recipe : recipes) {
    std::vector<std::size_t>& source = sources.emplace_back();
    for (const Recipe& part : fitted_parts(recipe)) {
      const auto known = std::find(distinct.begin(), distinct.end(), part);
      source.push_back(static_cast<std::size_t>(known - distinct.begin()));
      if (known == distinct.end()) distinct.push_back(part);
    }
  }
  std::vector<FitReport> found;
  std::vector<Quantizer> fitted;
  if (!distinct.empty()) fitted = fit_all(calibration, thresholds, distinct, context, found);
  std::vector<Quantizer> quantizers;
  if (reports != nullptr) reports->clear();
  for (std::size_t index = 0; index < recipes.size(); ++index) {
    const Recipe& recipe = recipes[index];
    const CalibrationHeader& header = calibration.header();
    const std::vector<std::size_t>& source = sources[index];
    quantizers.push_back(recipe.quantized ? fitted[source[0]] : Quantizer{recipe, header.shape, header.rope, {}});
    quantizers.back().recipe = recipe;
    for (std::size_t tier = 1; tier < source.size(); ++tier) add_tier(fitted[source[tier]], quantizers.back());
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    if (reports != nullptr) reports->push_back(recipe.quantized ? found[source[0]] : FitReport{{kNone, kNone}});
  }
  return quantizers;
}

}  // namespace kvq
