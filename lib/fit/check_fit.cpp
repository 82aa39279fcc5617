#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

std::string available(const ThresholdsFile& thresholds) {
  std::string list;
  for (const ThresholdSet& set : thresholds.sets)
    list += fmt::format("{}{} with sinks {}", list.empty() ? "" : ", ", set.fraction, set.sinks);
  return list;
}

void check_side(const Recipe& recipe, Side side, const ThresholdsFile* thresholds) {
  const SideRecipe& wanted = recipe.side(side);
  if (!needs_thresholds_file(wanted)) return;
  const std::string needed = fmt::format("recipe {}: {} thresholds for outlier fraction {} with sinks {} are needed",
                                         short_form(recipe), side_name(side), wanted.outliers, recipe.sinks);
  const std::string remedy =
      fmt::format("make them with kvq-threshold --outliers {} --sinks {} and give them with --thresholds",
                  wanted.outliers, recipe.sinks);
  if (thresholds == nullptr)
    fail(ErrorKind::Usage, fmt::format("{}, but no thresholds file is given; {}", needed, remedy));
  if (thresholds->find(wanted.outliers, recipe.sinks) == nullptr) {
    fail(ErrorKind::Usage,
         fmt::format("{}, but the thresholds file has {}; {}", needed, available(*thresholds), remedy));
  }
}

/// Magnitudes have no sign to rotate them by, and their products mean nothing.
void check_signs(const Recipe& recipe, Side side, const std::string& query_heads) {
  const SideRecipe& part = recipe.side(side);
  const bool weighted = (part.weights == FitWeights::Fisher || part.weights == FitWeights::FisherUnscaled) &&
                        (!has_own_format(part.codebook) || fits_with_weights(part));
  const bool turned = part.post_rope || part.rotation != Rotation::None;
  const bool blocks = needs_blocks(part) && part.rounding.metric == RoundingMetric::Fisher;
  if (query_heads == "joint" || !(blocks || (weighted && turned))) return;
  fail(ErrorKind::Usage,
       fmt::format(
           "recipe {}: {} need gradients with their sign ({}), but the calibration has magnitudes over query heads "
           "(kvq-fisher --query-heads {}); calibrate with --query-heads joint{}",
           short_form(recipe), side == Side::Key ? "keys" : "values",
           blocks           ? "for the block Fisher matrix"
           : part.post_rope ? "rope=post"
                            : "rotate=hadamard",
           query_heads, blocks ? ", or use metric=query" : ", or use weights=none"));
}

/// Gradients and metrics: which of them a file has depends on how it was made.
void check_presence(const Recipe& recipe, Side side, const CalibrationContents& contents) {
  const SideRecipe& part = recipe.side(side);
  const char* const name = side == Side::Key ? "keys" : "values";
  if (!contents.gradients && needs_gradients(part)) {
    const bool blocks = needs_blocks(part) && part.rounding.metric == RoundingMetric::Fisher;
    const bool weighted =
        fits_with_weights(part) && (part.weights == FitWeights::Fisher || part.weights == FitWeights::FisherUnscaled);
    fail(ErrorKind::Usage,
         fmt::format("recipe {}: {} need gradients ({}), but the calibration has none (kvq-fisher --forward-only); use "
                     "--metric query, which puts {} here, or calibrate with a backward pass",
                     short_form(recipe), name,
                     blocks && weighted ? "for the block Fisher matrix and the weights of codebooks"
                     : blocks           ? "for the block Fisher matrix"
                                        : "for the weights of codebooks",
                     blocks && weighted ? "metric=query and weights=query"
                     : blocks           ? "metric=query"
                                        : "weights=query"));
  }
  if (!contents.metrics && needs_metric(part)) {
    fail(ErrorKind::Usage,
         fmt::format("recipe {}: {} need '{}_metric' of every layer (metric=query, weights=query), which the "
                     "calibration does not have; make it anew with kvq-fisher --forward-only, or with --metrics",
                     short_form(recipe), name, side_name(side)));
  }
}

void check_origin(const CalibrationReader& calibration, const ThresholdsFile& thresholds) {
  const CalibrationHeader& header = calibration.header();
  const auto& parents = thresholds.provenance.parents;
  const auto parent =
      std::find_if(parents.begin(), parents.end(), [](const auto& entry) { return entry.first == "calibration"; });
  if (parent == parents.end() || parent->second != calibration.sha256()) {
    fail(ErrorKind::Mismatch,
         fmt::format("the thresholds were made from another calibration file (sha256 {}, this one is {}); "
                     "run kvq-threshold on this one",
                     parent == parents.end() ? "not named" : parent->second, calibration.sha256()));
  }
  if (!(thresholds.shape == header.shape)) {
    fail(ErrorKind::Mismatch,
         fmt::format("the thresholds are for {} layers of {} x {} channels, the calibration has {} of {} x {}",
                     thresholds.shape.layers, thresholds.shape.kv_heads, thresholds.shape.head_dim, header.shape.layers,
                     header.shape.kv_heads, header.shape.head_dim));
  }
  if (thresholds.provenance.model_sha256 != header.provenance.model_sha256) {
    fail(ErrorKind::Mismatch, fmt::format("the thresholds are of model {}, the calibration is of {}",
                                          thresholds.provenance.model_sha256, header.provenance.model_sha256));
  }
}

}  // namespace

void check_contents(const Recipe& recipe, const CalibrationContents& contents) {
  for (const Side side : kSides) {
    check_presence(recipe, side, contents);
    check_signs(recipe, side, contents.query_heads);
  }
}

void check_fit(const CalibrationReader& calibration, const ThresholdsFile* thresholds,
               const std::vector<Recipe>& recipes) {
  if (thresholds != nullptr) check_origin(calibration, *thresholds);
  for (const Recipe& recipe : recipes) {
    if (recipe.is_baseline())
      fail(ErrorKind::Usage, "recipe none is the unquantized baseline: there is nothing to fit");
    validate(recipe);
    check_local_layers(recipe, calibration.header().rope);
    if (!recipe.quantized) continue;  // nothing to fit, but a file says what is evicted
    check_shape(recipe, calibration.header().shape.kv_heads, calibration.header().shape.head_dim);
    if (recipe.sinks >= calibration.header().seqlen) {
      fail(ErrorKind::Usage,
           fmt::format("recipe {}: {} sinks leave nothing of the calibration's sequences of {} tokens",
                       short_form(recipe), recipe.sinks, calibration.header().seqlen));
    }
    const CalibrationHeader& header = calibration.header();
    check_contents(recipe, {header.query_heads, header.gradients, header.metrics});
    for (const Side side : kSides) check_side(recipe, side, thresholds);
    const int head_dim = calibration.header().shape.head_dim;
    if (recipe.key.widths == Widths::Pair && head_vector_bits(recipe.key, head_dim) == 0) {
      fail(ErrorKind::Usage, fmt::format("recipe {}: {} bits for each of {} channels do not come to whole bits for "
                                         "every RoPE pair; widths=pair needs an even head dimension, with half bits a "
                                         "multiple of four",
                                         short_form(recipe), code_bits(recipe.key), head_dim));
    }
  }
}

}  // namespace kvq
