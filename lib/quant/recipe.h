#pragma once
// A recipe says how a cache is quantized. Short form for the command line (`nuq3-1%:sink=1`), long form as TOML
// (lib/artifacts/recipe_toml.h). DESIGN §3.

#include <string>
#include <vector>

#include <kvq/core/side.h>
#include <kvq/quant/rounding_recipe.h>

namespace kvq {

enum class CodebookKind {
  Nuq,  ///< fitted, non-uniform (KVQuant)
  Int,  ///< uniform grid over the range
  Nf,   ///< NormalFloat: quantiles of a normal, scaled to [-1, 1] (QLoRA), for any number of bits
};
enum class Axis {
  Channel,  ///< one range per channel, over tokens
  Token,    ///< one range per token, over all kv heads of the layer
};
enum class RangeKind {
  Static,  ///< calibrated thresholds
  Online,  ///< the token's own minimum and maximum
  Window,  ///< the evaluated window's own range: an oracle, simulated only, never counted as a cache
};
enum class FitWeights {
  Fisher,          ///< F·s² (KVQuant appendix E, eq. 7)
  FisherUnscaled,  ///< F, as the published code does
  None,
};
enum class Share { Layer, Head };

struct SideRecipe {
  CodebookKind codebook = CodebookKind::Nuq;
  int bits = 4;  ///< 1 … 8
  Axis axis = Axis::Channel;
  RangeKind range = RangeKind::Static;
  bool post_rope = false;  ///< keys only: quantize after RoPE (ablation)
  double outliers = 0.0;   ///< fraction kept exact: beyond static thresholds (channel), k largest and smallest (token)
  double cap = 0.0;        ///< keys, static thresholds: at most ceil(cap · width) of a token exact; 0 = no cap
  FitWeights weights = FitWeights::Fisher;
  Share share = Share::Layer;
  bool qnorm = false;
  bool half_bit = false;  ///< half a bit more on average; widths=pair only
  int levels = 0;         ///< values: 3, 5, 10 or 20 beside 1, 2, 3, 4 bits, three codes together; 0: 2^bits
  Widths widths = Widths::Flat;
  Rotation rotation = Rotation::None;
  RoundingRecipe rounding;
  bool operator==(const SideRecipe&) const = default;
};

struct Recipe {
  bool quantized = true;  ///< false: `none`, the unquantized baseline
  SideRecipe key, value;
  int sinks = 1;  ///< first tokens of every sequence kept exact
  bool operator==(const Recipe&) const = default;

  const SideRecipe& side(Side side) const { return side == Side::Key ? key : value; }
  SideRecipe& side(Side side) { return side == Side::Key ? key : value; }

  /// Needs to see the window that it is judged on: no cache, and never counted as one.
  bool is_oracle() const { return key.range == RangeKind::Window || value.range == RangeKind::Window; }
};

/// Parses the short form. Throws Usage naming the word, its value and the known ones; contradictory words too
/// (`key=token` with `range=static`, a cap without outliers, …).
Recipe parse_recipe(const std::string& text);

/// Canonical short form: parse_recipe(short_form(r)) == r, defaults left out.
std::string short_form(const Recipe& recipe);

/// File name of a recipe: letters, digits, '-', '_', '.' only; different recipes, different slugs.
std::string slug(const Recipe& recipe);

/// Throws Usage when the fields contradict each other (also used after reading TOML).
void validate(const Recipe& recipe);

}  // namespace kvq
